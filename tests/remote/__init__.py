"""Work that is done elsewhere: by workers that long-poll, and by endpoints that report later."""
