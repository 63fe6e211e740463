package reflection

// Limits on what a consumer can have reflected.
const (
	// maxServicePorts is how many ports a reflected Service may have.
	maxServicePorts = 100
	// MaxNote bounds an object in its annotation, compressed if it is larger than plainNote; the
	// annotations of an object have 256 KiB together.
	MaxNote   = 224 << 10
	plainNote = 16 << 10
	// maxOpenings is of how many Services it is remembered what they open of pods: more than all consumers have. Beyond
	// that all of them are decoded again.
	maxOpenings = 4096
)
