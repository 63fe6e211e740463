package storage

const (
	// pageSize is how many objects are listed at a time.
	pageSize = 500
	// MaxNamed is how many volumes or pods a message names before it only counts them.
	MaxNamed = 20
)
