package placementserver

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/internal/notify"
)

// KeptOff records an event of each DaemonSet whose pods the placement webhook keeps off virtual nodes. The webhook is
// asked before the DaemonSet is stored, and has a UID, without which kubectl describe shows no event.
type KeptOff struct {
	direct ctrlclient.Reader
	events events.EventRecorder
	queue  chan types.NamespacedName
	told   map[types.UID]struct{}
}

// NewKeptOff returns one that does nothing until it runs.
func NewKeptOff(direct ctrlclient.Reader, events events.EventRecorder) *KeptOff {
	return &KeptOff{direct: direct, events: events, queue: make(chan types.NamespacedName, maxKeptOff), told: map[types.UID]struct{}{}}
}

// Add has an event recorded of a DaemonSet, unless too many wait for theirs.
func (k *KeptOff) Add(namespace, name string) {
	select {
	case k.queue <- types.NamespacedName{Namespace: namespace, Name: name}:
	default:
	}
}

// Run records events until ctx ends.
func (k *KeptOff) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case set := <-k.queue:
			if !notify.Pause(ctx, keptOffPause) {
				return nil
			}
			k.tell(ctx, set)
		}
	}
}

// tell records the event, once for each DaemonSet. One that cannot be read was refused after the webhook was asked, or
// is gone.
func (k *KeptOff) tell(ctx context.Context, name types.NamespacedName) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var set appsv1.DaemonSet
	if err := k.direct.Get(ctx, name, &set); err != nil {
		return
	}
	if _, was := k.told[set.UID]; was {
		return
	}
	if len(k.told) >= maxKeptOffTold {
		clear(k.told)
	}
	k.told[set.UID] = struct{}{}
	k.events.Eventf(&set, nil, corev1.EventTypeNormal, "KeptOffVirtualNodes", "Place",
		"it tolerates the taints of virtual nodes, which run no pods of DaemonSets: Entente added the requirement "+
			"entente.dev/virtual-node DoesNotExist to the node affinity of its pods (placement.daemonSets of the chart)")
}
