package automatic

import (
	"time"
)

// Limits of peering by a policy's spec.automatic.
const (
	// maxCalls is how many clusters are called at once, callRate how many a
	// second in the long run and callBurst how many at once before that counts:
	// discovery may find any number that there are not.
	maxCalls  = 4
	callRate  = 2
	callBurst = 32
	// callTimeout bounds a call of one endpoint, and endpointsPerTry is how many are
	// called in turn.
	callTimeout     = 10 * time.Second
	endpointsPerTry = 2
	// firstSpread is within which the one of two clusters dials whose ID is the lower,
	// laterAfter and laterSpread when the other one does if nothing came of that.
	firstSpread = 500 * time.Millisecond
	laterAfter  = 3 * time.Second
	laterSpread = 3 * time.Second
	// retryMax is the longest pause after tries that failed, which begin with
	// trustRetryMin; up to half is added by chance. longPause is that after a refusal
	// that a person has to do something about.
	retryMax  = 10 * time.Minute
	longPause = 30 * time.Minute
	// unknownPause is how soon one is tried again that does not know the group, at first:
	// it may only just start.
	unknownPause = time.Minute
	// maxFirstUse is how many clusters a policy trusts on first use: whoever is on the
	// network makes any number, and each gets what the policy offers to one.
	maxFirstUse = 64
	// endpointPause is how often one endpoint is called, whoever is said to be there.
	endpointPause = 5 * time.Second
	// maxTries is how many tries are remembered of clusters that are not found any more.
	maxTries = 1024
	// policyGone is for how long a policy has to be gone until what it made ends: to
	// replace it may be to delete and create it, as Helm does.
	policyGone = time.Minute
	// leftAfter is for how long a policy's peer that trusts this cluster no longer, and that
	// discovery does not find, stays known.
	leftAfter = 10 * time.Minute
	// vanishedAfter is for how long one stays known that no list names, that is neither
	// found nor connected, and with which nothing is agreed.
	vanishedAfter = 24 * time.Hour
	// lookPace is the least time between two looks, lookEvery how often it is
	// looked where nothing happens.
	lookPace = 250 * time.Millisecond
	// secretPause is how soon a group's Secret is read again that could not be read.
	secretPause = 5 * time.Second
	// maxOutcome is the most bytes that are told of why a call failed.
	maxOutcome = 300
	lookEvery  = time.Minute
)
