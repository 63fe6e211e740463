package trust

import (
	"time"
)

// Limits of clusters that introduce themselves. A new cluster ID costs nothing, so the limits are
// on places, by address (IPv6: one /64), and on how long they are taken.
const (
	// MaxIntroductions is how many clusters can wait for an administrator, and
	// MaxIntroductionsPerAddress how many of them from one address.
	MaxIntroductions           = 32
	MaxIntroductionsPerAddress = 8
	// IntroductionLife is how long one waits.
	IntroductionLife = time.Hour
	// RevealTimeout is how long a cluster may take to open its commitment.
	RevealTimeout = time.Minute
	// IntroductionBurst is how often one cluster can introduce itself at once, and
	// IntroductionPause how often in the long run: each time its code is another one.
	IntroductionBurst = 5
	IntroductionPause = 5 * time.Minute
	// CodeBurst is how many introductions of all clusters can be begun at once and not completed, and CodePause the
	// time after which one more can: each may be a guess at the code, by a cluster in the middle that continues only
	// if it guessed right. The bursts are small, since such a cluster may guess at both sides at once, and any pair
	// of its guesses may match.
	CodeBurst = 16
	CodePause = GuessPause
	// CodeBurstPerNetwork and CodePausePerNetwork are those of one network: an IPv4 /24, or an IPv6 /48.
	CodeBurstPerNetwork = 8
	CodePausePerNetwork = 2 * GuessPause
	// CodeBurstPerAddress and CodePausePerAddress are those of one address (IPv6: one /64).
	CodeBurstPerAddress = 4
	CodePausePerAddress = GuessPausePerAddress

	// introductionsPause is the pause that a cluster is asked for when there is no place.
	introductionsPause = 5 * time.Minute
)

// Limits of proofs that a cluster knows a group's secret. A run that does not end with a right
// confirmation counts as a failed guess, and so does a run that has not ended. Runs that this
// cluster answers and runs that it begins are counted separately, so that a cluster whose runs
// fail here does not keep this one from proving to others, unless it is found at many addresses
// and fails there too. In the long run that is 60 guesses an hour of each kind, 120 in all, or a
// million a year, over all groups: that protects 16 random bytes, but not a word of a dictionary.
// Each cluster of a group counts separately.
const (
	// ProofTimeout is how long a run may take.
	ProofTimeout = 30 * time.Second
	// GuessBurst is how many runs of all clusters can fail at once, and GuessPause the time
	// after which one more can.
	GuessBurst = 32
	GuessPause = time.Minute
	// GuessBurstPerAddress and GuessPausePerAddress are those of one address (IPv6: one
	// /64), or of one endpoint that is dialled.
	GuessBurstPerAddress = 8
	GuessPausePerAddress = 5 * time.Minute
	// GuessBurstPerCluster and GuessPausePerCluster are those of one cluster ID.
	GuessBurstPerCluster = 4
	GuessPausePerCluster = 10 * time.Minute
	// ProvenBurst is how many runs of one cluster ID succeed at once, and ProvenPause the
	// time after which one more may: each may be a write.
	ProvenBurst = 16
	ProvenPause = time.Minute
	// GroupNewsBurst is how many failures of one group are reported at once, and GroupNewsPause
	// the time after which one more is.
	GroupNewsBurst = 4
	GroupNewsPause = time.Minute
)

// Limits of calling other clusters about trust.
const (
	// trustWorkers is how many clusters are called at once.
	trustWorkers = 4
	// joinTimeout bounds a join or an introduction: several endpoints in turn.
	joinTimeout = 90 * time.Second
	// updateTimeout bounds sending a peer this cluster's roots.
	updateTimeout = 10 * time.Second
	// maxKeysNamed is how many keys of a Secret an error lists if the expected key is missing.
	maxKeysNamed = 4
	// maxHashes is how many hashes of trust bundles are cached, so that those of forgotten peers
	// do not pile up.
	maxHashes = 4096
)
