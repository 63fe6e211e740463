package agent

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/clock"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/kubeauth"
	"github.com/entente-dev/entente/internal/leader"
	"github.com/entente-dev/entente/internal/services"
	"github.com/entente-dev/entente/internal/slim"
	"github.com/entente-dev/entente/internal/store"
)

// leaseLost explains the end of an agent that could not renew its lease: what happened and what follows. It ends at
// once: anything it still did could conflict with the next leader.
func (a *agent) leaseLost(err error) error {
	if err == nil || !strings.Contains(err.Error(), "leader election lost") { // the text of manager.Manager
		return err
	}
	return fmt.Errorf("lease %s/%s could not be renewed for %s, because the API server or this node was too slow, so this agent stops leading; "+
		"another one leads, or this one again when it is restarted, and tunnels and running pods go on meanwhile: %w", a.cfg.Namespace, leaseName, a.timing.Deadline, err)
}

// elect prepares the lease by which one agent leads. Once it is lost, no other client of this agent changes
// anything.
func (a *agent) elect(_ context.Context, duration time.Duration) error {
	a.timing, a.clock = leader.TimingOf(cmp.Or(duration, defaultLease)), clock.New()
	a.cfg.Kubernetes = rest.CopyConfig(a.cfg.Kubernetes)
	a.cfg.Kubernetes.Wrap(a.clock.Wrap)
	var err error
	a.lease, err = leader.New(leader.Config{
		Kubernetes: a.cfg.Kubernetes, Namespace: a.cfg.Namespace, Name: leaseName,
		Pod: a.cfg.Pod, PodUID: a.cfg.PodUID, Timing: a.timing,
	})
	a.cfg.Kubernetes = rest.CopyConfig(a.cfg.Kubernetes)
	a.cfg.Kubernetes.Wrap(a.lease.Fence)
	return err
}

func (a *agent) manager(ctx context.Context, serve serveConfig) error {
	var err error
	a.mgr, err = ctrl.NewManager(a.cfg.Kubernetes, ctrl.Options{
		Scheme: kube.Scheme(),
		Logger: logr.FromSlogHandler(a.log.Handler()),
		Cache:  cacheOptions(a.cfg.Namespace),
		Client: ctrlclient.Options{Cache: &ctrlclient.CacheOptions{
			DisableFor: []ctrlclient.Object{&corev1.Secret{}, &corev1.ConfigMap{}},
		}},
		LeaderElection:                      true,
		LeaderElectionID:                    leaseName,
		LeaderElectionNamespace:             a.cfg.Namespace,
		LeaderElectionReleaseOnCancel:       true,
		LeaderElectionResourceLockInterface: a.lease,
		LeaseDuration:                       new(a.timing.Duration),
		RenewDeadline:                       new(a.timing.Deadline),
		RetryPeriod:                         new(a.timing.Retry),
		GracefulShutdownTimeout:             new(stopLimit),
		// Metrics show all peers, so a client has to prove that it may read them.
		Metrics: metricsserver.Options{
			BindAddress: serve.Metrics, SecureServing: true, FilterProvider: a.metricsFilter,
			TLSOpts: []func(*tls.Config){func(c *tls.Config) {
				own := a.source.AdminTLS(a.serviceNames(), a.ownAddresses())
				c.MinVersion, c.GetCertificate = own.MinVersion, own.GetCertificate
			}},
		},
		HealthProbeBindAddress: serve.Health,
	})
	if err != nil {
		return fmt.Errorf("reach the API server: %w", err)
	}
	label := &leader.Label{Client: a.mgr.GetClient(), Namespace: a.cfg.Namespace, Pod: a.cfg.Pod, Log: a.log}
	if err := errors.Join(a.mgr.AddHealthzCheck("ping", healthz.Ping), a.mgr.AddReadyzCheck("leads", a.ready), a.mgr.Add(&standby{a}),
		a.mgr.Add(&uninstalled{cache: a.mgr.GetCache(), namespace: a.cfg.Namespace, stop: a.lease.Stop}), a.run(label.Run)); err != nil {
		return fmt.Errorf("serve health: %w", err)
	}
	if err := store.AddIndexes(ctx, a.mgr.GetFieldIndexer()); err != nil {
		return err
	}
	a.addresses = &addresses{client: a.mgr.GetCache(), pods: a.ownPrefixes()}
	a.addresses.openings.Changed = a.readdressed
	return nil
}

// metricsFilter lets only authorised callers read the metrics.
func (a *agent) metricsFilter(*rest.Config, *http.Client) (metricsserver.Filter, error) {
	return func(_ logr.Logger, next http.Handler) (http.Handler, error) {
		return kubeauth.MetricsReaders(a.kubernetes, a.log, next), nil
	}, nil
}

// cacheOptions limits what the agent caches: no Secrets' content, and nothing of other namespaces that the agent
// does not need.
func cacheOptions(namespace string) cache.Options {
	own := map[string]cache.Config{namespace: {}}
	return cache.Options{
		ByObject: map[ctrlclient.Object]cache.ByObject{
			// The part of Services that may be announced to peers, if a policy says so.
			&corev1.Service{}: {Transform: slim.Service(namespace)},
			&corev1.Pod{}:     {Transform: slim.Pod},
			// Those of exported Services, once a peer may import.
			&discoveryv1.EndpointSlice{}: {Transform: services.SlimSlice},
			// Their names and versions, not their content.
			&corev1.Secret{}: {Namespaces: own, Transform: slim.Names},
			// Those that grant the agent its rights in namespaces.
			&rbacv1.RoleBinding{}: {Label: labels.SelectorFromSet(labels.Set{v1alpha1.LabelManaged: v1alpha1.Manager})},
		},
		DefaultTransform: cache.TransformStripManagedFields(),
	}
}

// ready reports whether this agent does its part: it leads and serves, or its caches are filled so that it could,
// and another one leads. Services lead only to the leader, by its label.
func (a *agent) ready(*http.Request) error {
	if a.serving.Load() || a.standsBy.Load() && a.lease.Follows() {
		return nil
	}
	return errors.New("this agent is starting, or no agent leads")
}

// standby runs once the caches are filled, whether this agent leads or not. It implements manager.Runnable and
// manager.LeaderElectionRunnable.
type standby struct{ *agent }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*standby) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (s *standby) Start(ctx context.Context) error {
	s.standsBy.Store(true)
	defer s.standsBy.Store(false)
	<-ctx.Done()
	return nil
}

// run adds a task to the manager, which runs it while this agent leads.
func (a *agent) run(task func(context.Context) error) error {
	return a.mgr.Add(manager.RunnableFunc(task))
}
