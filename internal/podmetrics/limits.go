package podmetrics

import "time"

// Limits on measuring for peers.
const (
	// measureEvery is how long a measurement of a contract is returned again: metrics APIs measure
	// no more often.
	measureEvery = 10 * time.Second
	// unavailableFor is how long an error that no metrics API exists is returned again.
	unavailableFor = time.Minute
	// measuredAtOnce is how many contracts are measured at once.
	measuredAtOnce = 2
	// listsPerSecond is how many namespaces are read a second, of all consumers, and
	// listsBurst how many at once.
	listsPerSecond = 20
	listsBurst     = 300
	// maxListBytes bounds one list: it has the consumer's labels.
	maxListBytes = 8 << 20
	// forgetAfter is when a contract's measurements are forgotten.
	forgetAfter = 10 * time.Minute
)

// Limits on a provider's metrics.
const (
	// askEvery is the shortest pause between two requests to a provider.
	askEvery = 5 * time.Second
	// maxAge is how old a measurement may be. Older ones are not shown: an old number is worse than
	// none.
	maxAge = 5 * time.Minute
	// clockSlack is how far a provider's clock may drift before times are translated differently,
	// and how far ahead of its own response a measurement may be.
	clockSlack = time.Second
)
