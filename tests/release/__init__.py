"""The packages of a release."""
