"""Known vulnerabilities of locked packages."""
