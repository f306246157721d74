"""From a dataset's file to what an algorithm learns from."""
