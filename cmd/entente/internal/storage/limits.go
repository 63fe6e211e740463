package storage

const (
	// pageSize is how many objects are asked for at a time.
	pageSize = 500
	// MaxNamed is how many volumes or pods a message names; it counts the others.
	MaxNamed = 20
)
