package clusterset

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/services"
	"github.com/entente-dev/entente/peering"
)

// SetupWithManager registers the reconciler. Whether the API server has the kinds is checked at once: a peer must
// not get an empty list of exports before that is known.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.followers.Watch = r.Watch
	r.followers.Changed = func(_ peering.ClusterID, name peering.ServiceName) { r.queue.Later(key(name), gather) }
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{}}
	})
	c, err := ctrl.NewControllerManagedBy(mgr).
		Named("clusterset").
		Watches(&api.ForeignCluster{}, all, kube.Updates(func(was, is *api.ForeignCluster) bool {
			return services.Matters(was, is) || !maps.Equal(was.Labels, is.Labels)
		})).
		Watches(&api.PeeringPolicy{}, all, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&api.Contract{}, all, kube.Updates(func(was, is *api.Contract) bool { return services.ImportsBy(was) != services.ImportsBy(is) })).
		Watches(&corev1.Namespace{}, all, kube.Updates(func(was, is *corev1.Namespace) bool {
			return !maps.Equal(was.Labels, is.Labels) || was.DeletionTimestamp.IsZero() != is.DeletionTimestamp.IsZero()
		})).
		WatchesRawSource(&r.queue).
		Build(r)
	if err != nil {
		return fmt.Errorf("build controller of the cluster set: %w", err)
	}
	if err := r.serve(c); err != nil {
		return err
	}
	return mgr.Add(manager.RunnableFunc(func(ctx context.Context) error { return r.run(ctx, c) }))
}

// run checks for the kinds until the API server has them, and ends the watches of peers when ctx ends.
func (r *Reconciler) run(ctx context.Context, c controller.Controller) error {
	defer r.followers.Stop() //nolint:contextcheck // ctx is over
	for !r.served.Load() {
		if !notify.Pause(ctx, servedAgain) {
			return nil
		}
		if err := r.serve(c); err != nil {
			return err
		}
		if r.served.Load() {
			r.Changed()
			r.queue.Later(reconcile.Request{}, 0)
		}
	}
	<-ctx.Done()
	return nil
}

// serve watches the kinds, if the API server has them.
func (r *Reconciler) serve(c controller.Controller) error {
	for _, kind := range []string{mcs.ServiceExportKindName, mcs.ServiceImportKindName} {
		_, err := r.Direct.RESTMapper().RESTMapping(mcs.SchemeGroupVersion.WithKind(kind).GroupKind(), mcs.SchemeGroupVersion.Version)
		if meta.IsNoMatchError(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("discover the Multi-Cluster Services API: %w", err)
		}
	}
	same := func(o client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(o)}}
	}
	for _, s := range []source.Source{
		source.Kind(r.Cache, client.Object(&mcs.ServiceExport{}), handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			r.Changed()
			return same(o)
		}), predicate.GenerationChangedPredicate{}),
		source.Kind(r.Cache, client.Object(&mcs.ServiceImport{}), handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			return same(o)
		}), predicate.GenerationChangedPredicate{}),
		source.Kind(r.Cache, client.Object(&corev1.Service{}), handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.ofService(ctx, o, o.GetName())
		})),
		source.Kind(r.Cache, client.Object(&discoveryv1.EndpointSlice{}), handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.ofService(ctx, o, o.GetLabels()[discoveryv1.LabelServiceName])
		})),
	} {
		if err := c.Watch(s); err != nil {
			return fmt.Errorf("watch what is exported and imported: %w", err)
		}
	}
	r.served.Store(true)
	return nil
}

// ofService returns the request about a Service, if it is exported.
func (r *Reconciler) ofService(ctx context.Context, o client.Object, name string) []reconcile.Request {
	of := peering.ServiceName{Namespace: o.GetNamespace(), Name: name}
	if o.GetLabels()[api.LabelManaged] == api.Manager || name == "" {
		return nil
	}
	if export, err := read(ctx, r.Client, of, &mcs.ServiceExport{}); err != nil || export == nil {
		return nil
	}
	r.queue.Later(key(of), gather)
	return nil
}
