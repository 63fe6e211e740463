package automatic

import (
	"time"
)

// Limits of peering by a policy's spec.automatic.
const (
	// maxCalls is how many clusters are called concurrently, callRate how many a second in the long run and
	// callBurst how many at once before that counts: discovery may find any number of clusters that do not exist.
	maxCalls  = 4
	callRate  = 2
	callBurst = 32
	// callTimeout bounds a call to one endpoint, and endpointsPerTry is how many are called in turn.
	callTimeout     = 10 * time.Second
	endpointsPerTry = 2
	// firstSpread is the time within which the cluster with the lower ID dials the other; laterAfter and
	// laterSpread are when the other one does, if that failed.
	firstSpread = 500 * time.Millisecond
	laterAfter  = 3 * time.Second
	laterSpread = 3 * time.Second
	// retryMax is the longest pause after failed tries, which begin with trustRetryMin; up to half is added at
	// random. longPause is the pause after a refusal that an administrator has to act on.
	retryMax  = 10 * time.Minute
	longPause = 30 * time.Minute
	// unknownPause is the first pause after a try with a cluster that does not know the group: it may have just
	// started.
	unknownPause = time.Minute
	// maxFirstUse is how many clusters a policy trusts on first use: any host on the network can pretend to be any
	// number of them, and each gets what the policy offers to one.
	maxFirstUse = 64
	// endpointPause is how often one endpoint is called, whichever cluster is said to be there.
	endpointPause = 5 * time.Second
	// maxTries is how many tries with clusters that are no longer found are remembered.
	maxTries = 1024
	// policyGone is how long a policy has to be gone until what it made ends: replacing it may mean deleting and
	// creating it, as Helm does.
	policyGone = time.Minute
	// leftAfter is how long a policy's peer that no longer trusts this cluster, and that discovery does not find,
	// stays known.
	leftAfter = 10 * time.Minute
	// vanishedAfter is how long a cluster stays known that no list names, that is neither found nor connected, and
	// with which there is no contract or request.
	vanishedAfter = 24 * time.Hour
	// reconcilePause is the least time between two reconciliations, reconcileInterval how often one takes place if
	// nothing happens.
	reconcilePause = 250 * time.Millisecond
	// secretPause is how soon a group's Secret that could not be read is read again.
	secretPause = 5 * time.Second
	// maxOutcome is the most bytes that are shown of why a call failed.
	maxOutcome        = 300
	reconcileInterval = time.Minute
)
