"""What a person asks for of the models of a run: lists, names, files, episodes, videos."""
