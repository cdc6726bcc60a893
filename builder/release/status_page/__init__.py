"""The status page: static HTML and badges, made from reports of nightly builds."""
