package mdns

// What others on a LAN can make a responder hold and do, on each interface.
const (
	// maxPacket is the most bytes of a packet, with its IP and UDP headers (RFC 6762
	// section 17). Larger ones are dropped.
	maxPacket = 9000
	// maxRecords is the most questions and records of a packet that is read. A full
	// packet of the shortest addresses has fewer.
	maxRecords = 600
	// maxPackets is the most packets of a second that are read,
	maxPackets = 1000
	// maxSourcePackets those from one address.
	maxSourcePackets = 200
	// maxRecordsHeard is the most questions and records of a second that are read: a few
	// packets can have as many as a hundred others,
	maxRecordsHeard = 20_000
	// maxSourceRecords those from one address.
	maxSourceRecords = 5_000
	// maxEntries is the most records that the cache keeps. When it is full, what is new is
	// dropped, and what does not answer any more loses its place.
	maxEntries = 4096
	// maxBytes is the most bytes of their names and data.
	maxBytes = 1 << 20
	// maxSourceEntries is the most records that the cache keeps from one address.
	maxSourceEntries = 512
	// maxInstances is the most instances of a type of service that the cache keeps,
	maxInstances = 256
	// maxSourceInstances those that came from one address.
	maxSourceInstances = 64
	// maxCrowded is the most instances that an address can come to while half of maxInstances
	// are taken; what it had before stays. So fewer than maxInstances/2/maxCrowded addresses,
	// 32, always leave room for others.
	maxCrowded = 4
	// maxCrowdedEntries is the same for records and maxEntries,
	maxCrowdedEntries = 64
	// maxCrowdedBytes for bytes and maxBytes.
	maxCrowdedBytes = 16 << 10
	// maxSet is the most records of one name and type that the cache keeps, other
	// than instances.
	maxSet = 16
	// maxSayers is of how many addresses is known that they say where an instance, or a
	// host, is.
	maxSayers = 8
	// maxImitations is of how many instances is told that they have our cluster ID.
	maxImitations = 4
	// maxPending is the most queries that wait for their answer; more are dropped.
	maxPending = 256
	// maxUnicast is the most packets of a second that are sent to single addresses.
	maxUnicast = 100
	// maxQuestions is the most questions of a query that is sent. More follow in the
	// next.
	maxQuestions = 32
)

// What a responder takes on itself.
const (
	// MaxServices is the most services that are published.
	MaxServices = 64
	// maxInterfaces is the most network interfaces: Linux lets a socket join 20 groups.
	maxInterfaces = 16
)
