package main

// exitCodeOfLibraries knows the errors of capstan's packages.
func exitCodeOfLibraries(error) int {
	return exitFailed
}
