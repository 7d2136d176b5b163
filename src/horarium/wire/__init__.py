"""The shapes of JSON that cross a wire or a file: what an owner writes, and what a reader is shown. No I/O."""
