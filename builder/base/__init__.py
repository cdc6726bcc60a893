"""What an image stands on: a registry's image, or Debian from its packages by a locked list, and what is known of either."""
