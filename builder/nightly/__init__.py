"""A night: bump, try the patches, build, train, publish, report; every step a command that a person can run."""
