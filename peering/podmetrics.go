package peering

import "time"

// ContractMetrics is what the pods of a contract use, as measured by their provider.
type ContractMetrics struct {
	// Time is when the provider responded, by its clock.
	Time time.Time
	// Pods are those that were measured.
	Pods []PodMetrics
}

// PodMetrics is what one pod used.
type PodMetrics struct {
	// UID is the pod's in the consumer.
	UID string
	// Time is when it was measured, by the provider's clock.
	Time time.Time
	// Window is the time before Time over which CPU is averaged.
	Window     time.Duration
	Containers []ContainerMetrics
}

// ContainerMetrics is what one container used.
type ContainerMetrics struct {
	Name string
	// Nanocores is CPU in billionths of a core.
	Nanocores uint64
	// Memory is the working set in bytes.
	Memory uint64
}
