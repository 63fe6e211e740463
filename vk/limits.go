package vk

import "time"

// Limits of what a provider can make a node show and keep, of what crosses to it, and
// of what callers of the kubelet endpoint can send.
const (
	// maxNodeLabels is how many labels of the provider a node takes.
	maxNodeLabels = 64

	// maxEventsPerPod is how many different events of a pod are shown.
	maxEventsPerPod = 64

	// Writes to home's API server that providers cause. A pod brings maxFirstStatuses
	// statuses and maxFirstEvents events with it: a kubelet needs about half of these
	// to start one. A status beyond those is written at most once each podPace, and
	// counts against its node's share; the last status of a pod always is written. Changes
	// of phase and readiness do not wait for that: maxFlips of them are written at once,
	// and one more each flipPace. Each ephemeral container that home adds brings
	// maxEphemeralStatuses: somebody waits for it to run.
	maxFirstStatuses     = 8
	maxEphemeralStatuses = 6
	maxFirstEvents       = 10
	podPace              = 10 * time.Second
	maxFlips             = 4
	flipPace             = 5 * time.Second
	// startGather is how long what is said of a pod that does not run yet is gathered before it
	// is written: that it runs may follow within moments, and that is written at once.
	startGather = 300 * time.Millisecond
	// maxNodeWrites and maxNodeWriteBytes is how many statuses, and how many bytes of
	// pods with these statuses, one node writes a second in the long run, and the
	// bursts how much at once: a peer with 5,000 pods may be lost and come back.
	// maxWriteBytes is that of all nodes, which share it evenly among those that need it:
	// etcd keeps up to ten minutes of revisions, within 2 GiB by default. Half of each is
	// for changes of phase and readiness.
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
	// maxComplaints is how many lines the log has of what a provider said that makes no
	// sense or refuses, and complainAgain how often there is one more.
	maxComplaints = 20
	complainAgain = time.Minute
	// nodePace is the pause between two writes of a node's status in the long run, and
	// nodeBurst how many may come without one: a peer that comes and goes writes it.
	nodePace  = 5 * time.Second
	nodeBurst = 20
	// managedFieldsBytes is what is added to the size of a pod for its managed fields.
	managedFieldsBytes = 2 << 10

	// A pod that the provider loses, or ends unasked, within youngPod after it took it
	// counts, and one of these is forgiven each lossForgiven. At maxLosses the node
	// takes no new pods for minLossPause, which doubles up to maxLossPause each time that
	// lossesAgain more are lost after that; after lossesForgotten without a loss all is
	// forgotten.
	youngPod        = 10 * time.Minute
	maxLosses       = 10
	lossForgiven    = time.Minute
	lossesAgain     = 3
	minLossPause    = time.Minute
	maxLossPause    = 30 * time.Minute
	lossesForgotten = time.Hour

	// nodeLossGrace, nodeLossGraceTunnel and nodeStartGrace are the defaults of a Config's LossGrace,
	// LossGraceTunnel and StartGrace: for how long a lost provider is not yet shown, also while the tunnel to it
	// passes traffic, and after a restart.
	nodeLossGrace       = 2 * time.Second
	nodeLossGraceTunnel = 15 * time.Second
	nodeStartGrace      = 20 * time.Second
	// podLossGrace is for how long the pods of a provider that does not answer stay
	// ready, podLossGraceTunnel while the tunnel to them passes traffic: as long as
	// Kubernetes waits for a kubelet.
	podLossGrace       = 10 * time.Second
	podLossGraceTunnel = 40 * time.Second
	// tunnelStartGrace is for how long a tunnel that is being made is not called
	// unavailable.
	tunnelStartGrace = 30 * time.Second

	// wantPause is for how long what was refused, or not answered, is not wanted again.
	wantPause = 30 * time.Second

	// maxUnknownPods is of how many pods that the cache does not have the status is kept, with
	// maxUnknownBytes in all. About maxUnknownLooks of them the API server is asked each minute.
	maxUnknownPods  = 10_000
	maxUnknownBytes = 64 << 20
	maxUnknownLooks = 200
	// maxObjectBytes is the most that an object may have on the wire: what etcd
	// takes.
	maxObjectBytes = 1_572_864

	// maxHeaderBytes is the most that a request's header may have.
	maxHeaderBytes = 64 << 10
)
