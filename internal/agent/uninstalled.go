package agent

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/internal/notify"
)

// uninstalled ends an agent whose namespace is being deleted, whether it leads or not. Kubernetes deletes its pod
// only seconds later, and lets it run for half a minute: meanwhile the agent would create again what the uninstall
// removes, such as virtual nodes, and nothing would remove them after that. It implements manager.Runnable and
// manager.LeaderElectionRunnable.
type uninstalled struct {
	cache     ctrlclient.Reader
	namespace string
	// stop keeps the agent from changing anything more.
	stop func(why error)
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*uninstalled) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable. Its error ends the agent; one that is started again ends again.
func (u *uninstalled) Start(ctx context.Context) error {
	for {
		var ns corev1.Namespace
		if err := u.cache.Get(ctx, ctrlclient.ObjectKey{Name: u.namespace}, &ns); err == nil && ns.DeletionTimestamp != nil {
			err := fmt.Errorf("namespace %s is being deleted, so this agent changes nothing more; install the chart again to end peerings in order", u.namespace)
			u.stop(err)
			return err
		}
		if !notify.Pause(ctx, namespacePoll) {
			return nil
		}
	}
}
