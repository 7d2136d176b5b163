"""The site of the documentation, and the tutorials that it begins with."""
