Phrase=when=None
