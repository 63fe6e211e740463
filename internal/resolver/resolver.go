// Package resolver is the process that answers the DNS queries of pods that run here for consumers.
// It fills a book of names from the API server; internal/names decides on the answers.
package resolver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"

	"github.com/go-logr/logr"
	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/names"
	"github.com/entente-dev/entente/internal/offload"
	"github.com/entente-dev/entente/peering"
)

// Config configures the resolver of consumers' names.
type Config struct {
	// Kubernetes is how to reach the API server. Required.
	Kubernetes *rest.Config
	// Address is where queries are answered, over UDP and TCP.
	Address string
	// HealthAddress is where /healthz, /readyz and /metrics are served.
	HealthAddress string
	// ClusterDomain is this cluster's domain, in which consumers can resolve nothing.
	ClusterDomain string
	// ShowClusterNames lets consumers resolve this cluster's names if home does not have them: the
	// resolvers in ResolvConf have to be this cluster's.
	ShowClusterNames bool
	// ResolvConf is the node's file with the resolvers for all other names.
	ResolvConf string
	Log        *slog.Logger
}

// Run answers the DNS queries of pods that run here for consumers, until ctx ends. It does not need
// the agent: it reads from the API server, and keeps what it has read while that is unavailable.
func Run(ctx context.Context, cfg Config) error {
	ctrl.SetLogger(logr.FromSlogHandler(cfg.Log.Handler()))
	book := names.NewBook()
	upstreams, err := upstreams(cfg.ResolvConf)
	if err != nil {
		return err
	}
	if len(upstreams) == 0 {
		cfg.Log.Warn("this node has no resolver that can be asked from a pod: names of the Internet do not resolve", "file", cfg.ResolvConf)
	}
	hidden := []string{peering.DefaultClusterDomain}
	if cfg.ClusterDomain != "" && cfg.ClusterDomain != peering.DefaultClusterDomain {
		hidden = append(hidden, cfg.ClusterDomain)
	}
	var serving atomic.Bool
	server, err := names.New(names.Config{
		Book: book, Upstreams: upstreams, ClusterNames: names.ClusterNames{Hidden: hidden, Visible: cfg.ShowClusterNames},
		Refuse:  func(a netip.Addr) error { return discovery.Dialable(a) },
		Metrics: metrics.Registry, Log: cfg.Log,
	})
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(cfg.Kubernetes, options(cfg, &serving))
	if err != nil {
		return fmt.Errorf("reach the API server: %w", err)
	}
	synced, err := fill(ctx, book, mgr.GetCache())
	if err != nil {
		return err
	}
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return mgr.Start(ctx) })
	tasks.Go(func() error {
		// Before that, a name that is only not known yet would be denied.
		if !toolscache.WaitForCacheSync(ctx.Done(), synced...) {
			return nil
		}
		var listen net.ListenConfig
		packets, err := listen.ListenPacket(ctx, "udp", cfg.Address)
		if err != nil {
			return fmt.Errorf("listen for queries: %w", err)
		}
		listener, err := listen.Listen(ctx, "tcp", cfg.Address)
		if err != nil {
			_ = packets.Close()
			return fmt.Errorf("listen for queries: %w", err)
		}
		serving.Store(true)
		return server.Serve(ctx, packets, listener)
	})
	return tasks.Wait()
}

// options serves health and metrics at one address, and is ready once it is serving.
func options(cfg Config, serving *atomic.Bool) ctrl.Options {
	return ctrl.Options{
		Scheme: kube.Scheme(),
		Logger: logr.FromSlogHandler(cfg.Log.Handler()),
		Cache:  namesCache(),
		Metrics: metricsserver.Options{BindAddress: cfg.HealthAddress, ExtraHandlers: map[string]http.Handler{
			"/healthz": healthz.CheckHandler{Checker: healthz.Ping},
			"/readyz": healthz.CheckHandler{Checker: func(*http.Request) error {
				if !serving.Load() {
					return errors.New("not all names of consumers are read yet")
				}
				return nil
			}},
		}},
		HealthProbeBindAddress: "0",
	}
}

// namesCache returns which objects the resolver caches, and which of their fields.
func namesCache() cache.Options {
	ours := labels.SelectorFromSet(labels.Set{v1alpha1.LabelManaged: v1alpha1.Manager})
	if peer, err := labels.NewRequirement(v1alpha1.LabelPeer, selection.Exists, nil); err == nil {
		ours = ours.Add(*peer)
	}
	return cache.Options{
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Namespace{}: {Label: ours, Transform: cache.TransformStripManagedFields()},
			&corev1.Service{}: {Label: ours, Transform: func(o any) (any, error) {
				if s, ok := o.(*corev1.Service); ok {
					s.ManagedFields = nil
					maps.DeleteFunc(s.Annotations, func(key, _ string) bool {
						return key != v1alpha1.AnnotationExternalName && key != v1alpha1.AnnotationSetName
					})
				}
				return o, nil
			}},
			&discoveryv1.EndpointSlice{}: {Label: ours, Transform: cache.TransformStripManagedFields()},
			&v1alpha1.OffloadedPod{}: {Transform: func(o any) (any, error) {
				if p, ok := o.(*v1alpha1.OffloadedPod); ok {
					p.ManagedFields, p.Annotations = nil, nil
					p.Spec.Template, p.Status.PodStatus = runtime.RawExtension{}, nil
				}
				return o, nil
			}},
		},
	}
}

// fill keeps a book up to date with the API server, and returns the functions that report whether
// it has read everything.
func fill(ctx context.Context, book *names.Book, objects cache.Cache) (synced []toolscache.InformerSynced, err error) {
	for _, kind := range []struct {
		object      client.Object
		set, forget func(client.Object)
	}{
		{&corev1.Namespace{}, func(o client.Object) {
			l := o.GetLabels()
			book.SetNamespace(o.GetName(), l[v1alpha1.LabelPeer], l[v1alpha1.LabelOriginNamespace], offload.ClusterDomain(o))
		}, func(o client.Object) { book.DeleteNamespace(o.GetName()) }},
		{&corev1.Service{}, func(o client.Object) {
			book.SetService(o.GetNamespace(), o.GetName(), nameService(o.(*corev1.Service)))
		}, func(o client.Object) { book.DeleteService(o.GetNamespace(), o.GetName()) }},
		{&discoveryv1.EndpointSlice{}, func(o client.Object) {
			slice := o.(*discoveryv1.EndpointSlice)
			book.SetSlice(slice.Namespace, slice.Name, slice.Labels[discoveryv1.LabelServiceName], nameEndpoints(slice))
		}, func(o client.Object) { book.DeleteSlice(o.GetNamespace(), o.GetName()) }},
		{&v1alpha1.OffloadedPod{}, func(o client.Object) {
			book.SetPod(o.GetNamespace(), o.GetName(), nameAddresses(o.(*v1alpha1.OffloadedPod)))
		}, func(o client.Object) { book.SetPod(o.GetNamespace(), o.GetName(), nil) }},
	} {
		informer, err := objects.GetInformer(ctx, kind.object)
		if err != nil {
			return nil, fmt.Errorf("watch %T: %w", kind.object, err)
		}
		set := func(o any) {
			if o, ok := o.(client.Object); ok {
				kind.set(o)
			}
		}
		handled, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: set, UpdateFunc: func(_, o any) { set(o) },
			DeleteFunc: func(o any) {
				if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
					o = gone.Obj
				}
				if o, ok := o.(client.Object); ok {
					kind.forget(o)
				}
			},
		})
		if err != nil {
			return nil, fmt.Errorf("watch %T: %w", kind.object, err)
		}
		synced = append(synced, handled.HasSynced)
	}
	return synced, nil
}

func nameService(s *corev1.Service) names.Service {
	out := names.Service{Headless: s.Spec.ClusterIP == corev1.ClusterIPNone, Addresses: kube.Addrs(s.Spec.ClusterIPs)}
	if target := s.Annotations[v1alpha1.AnnotationExternalName]; peering.CheckExternalName(target) == nil {
		out.ExternalName = target
	}
	out.Set = s.Annotations[v1alpha1.AnnotationSetName]
	for _, p := range s.Spec.Ports {
		out.Ports = append(out.Ports, names.Port{Name: p.Name, Protocol: strings.ToLower(string(p.Protocol)), Number: uint16(p.Port)})
	}
	return out
}

// nameEndpoints returns the endpoints of an EndpointSlice that take traffic.
func nameEndpoints(s *discoveryv1.EndpointSlice) (out []names.Endpoint) {
	var ports []names.Port
	for _, p := range s.Ports {
		if p.Port == nil {
			continue
		}
		protocol := strings.ToLower(string(ptr.Deref(p.Protocol, corev1.ProtocolTCP)))
		ports = append(ports, names.Port{Name: ptr.Deref(p.Name, ""), Protocol: protocol, Number: uint16(*p.Port)})
	}
	for _, e := range s.Endpoints {
		// Unknown counts as ready, as for kube-proxy.
		if !ptr.Deref(e.Conditions.Ready, true) {
			continue
		}
		for _, a := range kube.Addrs(e.Addresses) {
			out = append(out, names.Endpoint{Address: a, Ports: ports, Hostname: ptr.Deref(e.Hostname, ""), Cluster: s.Labels[v1alpha1.LabelSourceCluster]})
		}
	}
	return out
}

func nameAddresses(p *v1alpha1.OffloadedPod) []netip.Addr {
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return nil
	}
	return kube.Addrs(p.Status.PodIPs)
}

// upstreams reads the resolvers of a resolv.conf that a pod can reach. A loopback address is a
// process on the node, and none in a pod.
func upstreams(file string) ([]netip.AddrPort, error) {
	conf, err := dns.ClientConfigFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the resolvers: %w", err)
	}
	var out []netip.AddrPort
	for _, a := range kube.Addrs(conf.Servers) {
		if !a.IsLoopback() && !a.IsUnspecified() {
			out = append(out, netip.AddrPortFrom(a, 53))
		}
	}
	return out, nil
}
