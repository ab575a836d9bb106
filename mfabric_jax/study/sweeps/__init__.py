"""Design spaces: a file of axes in, files of rows out."""
