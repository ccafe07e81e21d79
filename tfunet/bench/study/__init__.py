"""What a study is, and the trials it plans."""
