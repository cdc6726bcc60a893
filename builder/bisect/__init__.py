"""What broke it: halves what lies between a good and a bad build until one change is left, or the two that it takes."""
