package mdns

// Limits on what other hosts of a LAN can make a responder keep and do, on each interface.
const (
	// maxPacket bounds a packet, with its IP and UDP headers (RFC 6762 section 17). Larger ones are
	// dropped.
	maxPacket = 9000
	// maxRecords bounds the questions and records of a packet. A full packet of the shortest
	// address records has fewer.
	maxRecords = 600
	// maxPackets is how many packets are read in a second,
	maxPackets = 1000
	// maxSourcePackets how many of them from one address.
	maxSourcePackets = 200
	// maxRecordsRead is how many questions and records are read in a second: a few packets can have
	// as many as a hundred others,
	maxRecordsRead = 20_000
	// maxSourceRecords how many of them from one address.
	maxSourceRecords = 5_000
	// maxEntries is how many records the cache keeps. When it is full, new ones are dropped, and
	// instances that no longer answer lose their place.
	maxEntries = 4096
	// maxBytes bounds their names and data.
	maxBytes = 1 << 20
	// maxSourceEntries is how many records the cache keeps from one address.
	maxSourceEntries = 512
	// maxInstances is how many instances of a service type the cache keeps,
	maxInstances = 256
	// maxSourceInstances how many of them from one address.
	maxSourceInstances = 64
	// maxCrowded is how many instances an address may have while half of maxInstances are taken;
	// those that it had before stay. So fewer than maxInstances/2/maxCrowded addresses, 32, always
	// leave room for others.
	maxCrowded = 4
	// maxCrowdedEntries is the same for records and maxEntries,
	maxCrowdedEntries = 64
	// maxCrowdedBytes for bytes and maxBytes.
	maxCrowdedBytes = 16 << 10
	// maxSet is how many records of one name and type the cache keeps, other than instances.
	maxSet = 16
	// maxSenders is how many senders of an instance's, or a host's, record are remembered.
	maxSenders = 8
	// maxImitations is how many instances with our cluster ID are reported.
	maxImitations = 4
	// maxPending is how many queries may wait for their answer; more are dropped.
	maxPending = 256
	// maxUnicast is how many packets are sent to single addresses in a second.
	maxUnicast = 100
	// maxQuestions is how many questions a query of ours has. More follow in the next.
	maxQuestions = 32
)

// Limits on what a responder does by itself.
const (
	// MaxServices is how many services are published.
	MaxServices = 64
	// maxInterfaces is how many network interfaces are used: Linux lets a socket join 20 groups.
	maxInterfaces = 16
)
