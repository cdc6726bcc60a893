"""The status page: static HTML and badges, made of the reports of nights."""
