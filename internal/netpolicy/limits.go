package netpolicy

import "time"

// Limits of one policy as it crosses. Home leaves out what is beyond them, which closes; a provider
// refuses it.
const (
	// maxRules is how many rules it has, in both directions together.
	maxRules = 256
	// maxSelectors is how many selectors of pods its rules have, maxRequirements how many
	// requirements and values these have together, and maxNamespaces how many namespaces they name.
	maxSelectors    = 256
	maxRequirements = 4096
	maxNamespaces   = 4096
	// maxAddresses is how many addresses of pods elsewhere its rules name.
	maxAddresses = 5000
	// maxBlocks is how many ipBlocks its rules have, and what they except.
	maxBlocks = 1000
	// maxPorts is how many ports its rules have.
	maxPorts = 1024
	// MaxBytes is how large it is as JSON.
	MaxBytes = 256 << 10
)

const (
	// maxAdmitted is how many blocks the rules of one policy have here: a network plugin makes
	// rules of each on every node. What is beyond is left out, which closes.
	maxAdmitted = 5000
	// maxNotes is how many things of one policy are named that do not cross.
	maxNotes = 5
	// maxName is the longest name of an object.
	maxName = 253
)

// Limits of what home does for policies.
const (
	// gatherChanges is for how long changes are gathered: those of policies and of the pods that they select
	// do not wait so long, since pods wait for them.
	gatherChanges = 500 * time.Millisecond
	// namesEvery is how often it is asked where this cluster's names are answered, namesAgain how soon again
	// where nobody said.
	namesEvery = time.Minute
	namesAgain = 2 * time.Second
	// sweepEvery is how often all is planned again, though nothing changed.
	sweepEvery = 5 * time.Minute
	// readTimeout bounds a question to the API server.
	readTimeout = 10 * time.Second
	// eventBurst and eventEvery bound the events that one provider's answers cause.
	eventBurst = 25
	eventEvery = 10 * time.Second
	// maxText bounds what a provider says of a policy where it is shown.
	maxText = 512
)
