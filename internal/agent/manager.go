package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"

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
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/kubeauth"
	"github.com/entente-dev/entente/internal/services"
	"github.com/entente-dev/entente/internal/slim"
	"github.com/entente-dev/entente/internal/store"
)

// leaseLost says of the end of an agent that could not renew its lease what
// happened and what follows. It ends at once: whatever it still did could be in the
// way of the next one.
func (a *agent) leaseLost(err error) error {
	if err == nil || !strings.Contains(err.Error(), "leader election lost") { // as manager.Manager says it
		return err
	}
	return fmt.Errorf("lease %s/%s could not be renewed for %s, because the API server or this node was too slow, so this agent stops leading; "+
		"it goes on where it was when it is restarted, and tunnels and running pods go on meanwhile: %w", a.cfg.Namespace, leaseName, renewDeadline, err)
}

func (a *agent) manager(ctx context.Context, serve serveConfig) error {
	lock, err := leaseLock(a.cfg)
	if err != nil {
		return err
	}
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
		LeaderElectionResourceLockInterface: lock,
		LeaseDuration:                       new(leaseDuration),
		RenewDeadline:                       new(renewDeadline),
		RetryPeriod:                         new(leaseRetry),
		// Metrics tell of all peers, so a pod has to show that it may read them.
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
	if err := errors.Join(a.mgr.AddHealthzCheck("ping", healthz.Ping), a.mgr.AddReadyzCheck("leads", a.ready)); err != nil {
		return fmt.Errorf("serve health: %w", err)
	}
	if err := store.AddIndexes(ctx, a.mgr.GetFieldIndexer()); err != nil {
		return err
	}
	a.addresses = &addresses{client: a.mgr.GetCache()}
	return nil
}

// metricsFilter lets only authorised callers read the metrics.
func (a *agent) metricsFilter(*rest.Config, *http.Client) (metricsserver.Filter, error) {
	return func(_ logr.Logger, next http.Handler) (http.Handler, error) {
		return kubeauth.MetricsReaders(a.kubernetes, a.log, next), nil
	}, nil
}

// cacheOptions says what the agent caches: nothing secret, and nothing of other
// namespaces that is not ours to see.
func cacheOptions(namespace string) cache.Options {
	own := map[string]cache.Config{namespace: {}}
	return cache.Options{
		ByObject: map[ctrlclient.Object]cache.ByObject{
			// What peers may be told of Services, where a policy says so.
			&corev1.Service{}: {Transform: slim.Service(namespace)},
			&corev1.Pod{}:     {Transform: slim.Pod},
			// Those of exported Services, once somebody may import.
			&discoveryv1.EndpointSlice{}: {Transform: services.SlimSlice},
			// Which there are and when they change, not what they hold.
			&corev1.Secret{}: {Namespaces: own, Transform: slim.Names},
			// Those by which the agent has its rights in namespaces.
			&rbacv1.RoleBinding{}: {Label: labels.SelectorFromSet(labels.Set{v1alpha1.LabelManaged: v1alpha1.Manager})},
		},
		DefaultTransform: cache.TransformStripManagedFields(),
	}
}

func (a *agent) ready(*http.Request) error {
	if !a.serving.Load() {
		return errors.New("another agent leads, or this one is starting")
	}
	return nil
}

// run has the manager run a task while this agent leads.
func (a *agent) run(task func(context.Context) error) error {
	return a.mgr.Add(manager.RunnableFunc(task))
}
