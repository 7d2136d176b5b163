"""What persons decide about single runs and fire times of a job."""
