package netpolicy

import "time"

// Limits of one policy as it crosses. Home leaves out what exceeds them, which closes; a provider refuses it.
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
	// maxAdmitted is how many blocks the rules of one policy have here: a network plugin makes rules of each on
	// every node. What exceeds it is left out, which closes.
	maxAdmitted = 5000
	// maxNotes is how many parts of one policy that do not cross are named.
	maxNotes = 5
	// maxName is the longest name of an object.
	maxName = 253
)

// Limits of what home does for policies.
const (
	// gatherChanges is how long changes are gathered. Changes of policies, and of the pods that they select, do not
	// wait so long, since pods wait for them.
	gatherChanges = 500 * time.Millisecond
	// namesEvery is how often the resolver of this cluster's names is read, namesAgain how soon again after a
	// failure.
	namesEvery = time.Minute
	namesAgain = 2 * time.Second
	// sweepEvery is how often everything is planned again if nothing changed.
	sweepEvery = 5 * time.Minute
	// readTimeout bounds a read from the API server.
	readTimeout = 10 * time.Second
	// eventBurst and eventEvery bound the events that one provider's responses cause.
	eventBurst = 25
	eventEvery = 10 * time.Second
	// maxText bounds the text of a provider about a policy where it is shown.
	maxText = 512
)
