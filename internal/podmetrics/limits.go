package podmetrics

import "time"

// Limits of measuring for peers.
const (
	// measureEvery is how long what was measured for a contract is given again: what
	// measures pods does so no more often.
	measureEvery = 10 * time.Second
	// unavailableFor is how long it is believed that nothing measures pods.
	unavailableFor = time.Minute
	// measuredAtOnce is for how many contracts is measured at once.
	measuredAtOnce = 2
	// listsPerSecond is how many namespaces are read a second, of all consumers, and
	// listsBurst how many at once.
	listsPerSecond = 20
	listsBurst     = 300
	// maxListBytes is the most bytes of one list: the labels in it are the consumer's.
	maxListBytes = 8 << 20
	// forgetAfter is when what was measured for a contract is forgotten.
	forgetAfter = 10 * time.Minute
)

// Limits of what a provider says.
const (
	// askEvery is how often a provider is asked at most.
	askEvery = 5 * time.Second
	// maxAge is how old a measurement may be. Older ones are not shown: no number is
	// better than one of long ago.
	maxAge = 5 * time.Minute
	// clockSlack is by how much a provider's clock may drift before times are translated
	// otherwise, and how far ahead of its own answer a measurement may be.
	clockSlack = time.Second
)
