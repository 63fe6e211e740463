package vk

import "time"

// Limits on what a provider can make a node show and keep, on what is sent to it, and on what
// callers of the kubelet endpoint can send.
const (
	// maxNodeLabels is how many labels of the provider a node takes.
	maxNodeLabels = 64

	// maxDaemonSets is of how many DaemonSets a node knows that they have the event about their pods on it.
	maxDaemonSets = 1024
	// maxEventsPerPod is how many different events of a pod are shown.
	maxEventsPerPod = 64

	// Writes to home's API server that providers cause. A pod has maxFirstStatuses statuses and
	// maxFirstEvents events of its own: a kubelet needs about half of these to start one. A status
	// beyond those is written at most once each podPace, and counts against its node's share; the
	// last status of a pod is always written. Changes of phase and readiness do not wait for that:
	// maxFlips of them are written at once, and one more each flipPace. Each ephemeral container
	// that home adds allows maxEphemeralStatuses more: a user waits for it to run.
	maxFirstStatuses     = 8
	maxEphemeralStatuses = 6
	maxFirstEvents       = 10
	podPace              = 10 * time.Second
	maxFlips             = 4
	flipPace             = 5 * time.Second
	// startGather is how long statuses of a pod that does not run yet are gathered before the
	// latest is written: that it runs may follow within moments, and is written at once.
	startGather = 300 * time.Millisecond
	// maxNodeWrites and maxNodeWriteBytes are how many statuses, and how many bytes of pods with
	// these statuses, one node writes a second in the long run; the bursts are how much at once: a
	// peer with 5,000 pods may be lost and come back. maxWriteBytes is the same for all nodes
	// together; those that need it share it evenly: etcd keeps up to ten minutes of revisions,
	// within 2 GiB by default. Half of each is for changes of phase and readiness.
	maxNodeWrites          = 50
	maxNodeWritesBurst     = 10_000
	maxNodeWriteBytes      = 256 << 10
	maxNodeWriteBytesBurst = 64 << 20
	maxWriteBytes          = 256 << 10
	maxWriteBytesBurst     = 192 << 20
	// maxNodeEvents and maxEvents are the same for events, which stay for an hour.
	// Events beyond that are not written.
	maxNodeEvents      = 5
	maxNodeEventsBurst = 500
	maxEvents          = 20
	maxEventsBurst     = 2_000
	// maxComplaints is how many lines are logged at once about a provider's malformed messages and
	// refusals, and complainAgain how often one more is.
	maxComplaints = 20
	complainAgain = time.Minute
	// nodePace is the pause between two writes of a node's status in the long run, and nodeBurst
	// how many may follow without one: a peer that connects and disconnects causes them.
	nodePace  = 5 * time.Second
	nodeBurst = 20
	// managedFieldsBytes is added to the size of a pod for its managed fields.
	managedFieldsBytes = 2 << 10

	// nodeLossGrace, nodeLossGraceTunnel and nodeStartGrace are the defaults of LossGrace, LossGraceTunnel
	// and StartGrace in a Config: how long the node stays Ready after its provider is lost, while the tunnel
	// to it still passes traffic, and after a restart.
	nodeLossGrace       = 2 * time.Second
	nodeLossGraceTunnel = 15 * time.Second
	nodeStartGrace      = 20 * time.Second
	// podLossGrace is how long the pods of a provider that does not respond stay ready, and
	// podLossGraceTunnel how long while the tunnel to them passes traffic: as long as Kubernetes
	// waits for a kubelet.
	podLossGrace       = 10 * time.Second
	podLossGraceTunnel = 40 * time.Second
	// tunnelStartGrace is how long a new tunnel is not yet reported as unavailable.
	tunnelStartGrace = 30 * time.Second

	// stuckAfter is how long after its grace period a pod that the provider's cluster deletes by itself may
	// still be there until the local one is deleted.
	stuckAfter = 30 * time.Second

	// wantPause is the pause before an object that was refused, or not acknowledged, is wanted again.
	wantPause = 30 * time.Second

	// maxUnknownPods is how many statuses are kept of pods that the cache does not have, with
	// maxUnknownBytes in all. The API server is asked about maxUnknownReads of them each minute.
	maxUnknownPods  = 10_000
	maxUnknownBytes = 64 << 20
	maxUnknownReads = 200
	// maxObjectBytes bounds an object on the wire: it is what etcd takes.
	maxObjectBytes = 1_572_864

	// maxHeaderBytes bounds a request's header.
	maxHeaderBytes = 64 << 10
)
