"""What `manage.py migrate` makes."""
