"""The documentation site: static files of docs/, which any web server can serve."""
