package reflection

// Limits of what a consumer can have reflected.
const (
	// maxServicePorts is how many ports a reflected Service may have.
	maxServicePorts = 100
	// MaxNote is the largest object, compressed if it is larger than plainNote, that fits the
	// annotation in which it is kept; annotations of an object have 256 KiB in all.
	MaxNote   = 224 << 10
	plainNote = 16 << 10
)
