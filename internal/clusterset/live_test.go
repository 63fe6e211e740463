package clusterset

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/mcs-api/config/crd"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
	"sigs.k8s.io/yaml"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/charttest"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/services"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/peering"
)

// sharing is a cluster that shares its namespaces, its agent with the rights that the chart gives.
type sharing struct {
	owner client.Client
	r     *Reconciler
	// say sends the state of a peer's Service, as the complete list.
	say chan []peering.ExportedService
}

func startSharing(t *testing.T) *sharing {
	t.Helper()
	log.SetLogger(logr.Discard())
	server := charttest.StartAPIServer(t)
	if err := server.Upgrade("--set", "multiclusterServices.enabled=true"); err != nil {
		t.Fatal(err)
	}
	for _, text := range [][]byte{crd.ServiceExportCRD, crd.ServiceImportCRD} {
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(text, &definition); err != nil {
			t.Fatal(err)
		}
		if _, err := envtest.InstallCRDs(server.Owner, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{&definition}}); err != nil {
			t.Fatal(err)
		}
	}
	owner, err := client.New(server.Owner, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	agent := server.As("entente-agent")
	direct, err := client.New(agent, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	mgr, err := ctrl.NewManager(agent, ctrl.Options{
		Scheme: kube.Scheme(), Metrics: metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{&discoveryv1.EndpointSlice{}: {Transform: services.SlimSlice}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.AddIndexes(t.Context(), mgr.GetFieldIndexer()); err != nil {
		t.Fatal(err)
	}
	s := &sharing{owner: owner, say: make(chan []peering.ExportedService)}
	s.r = &Reconciler{
		Client: mgr.GetClient(), Direct: direct, Cache: mgr.GetCache(), Self: here, Changed: func() {},
		ServiceAccount: client.ObjectKey{Namespace: "entente-system", Name: "entente-agent"},
		Home: func(_ peering.ClusterID, a netip.Addr) (netip.Addr, bool) {
			return netip.MustParseAddr("198.18.0." + strings.Split(a.String(), ".")[3]), true
		},
		Budget: &store.WriteBudget{Now: time.Now}, Events: &peertest.Recorder{},
		Watch: func(ctx context.Context, _ peering.ClusterID, _ services.Subscription, changed func(peering.ExportedService), synced func([]peering.ServiceName)) error {
			for {
				select {
				case <-ctx.Done():
					return nil
				case list := <-s.say:
					var names []peering.ServiceName
					for _, x := range list {
						changed(x)
						names = append(names, x.ServiceName)
					}
					synced(names)
				}
			}
		},
	}
	exports := &services.Exports{Reader: mgr.GetCache(), Export: s.r.Export, Own: func(context.Context) (func(netip.Addr) bool, error) {
		return netip.MustParsePrefix("10.0.0.0/16").Contains, nil
	}}
	s.r.Own = exports.Shared
	if err := s.r.SetupWithManager(mgr); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// create makes objects as the cluster's owner.
func (s *sharing) create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		if err := s.owner.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

// shows waits until what there is of a Service is as wanted.
func (s *sharing) shows(t *testing.T, want string) {
	t.Helper()
	var got string
	if !waittest.Soon(func() bool {
		got = s.look(t)
		return got == want
	}) {
		t.Fatalf("it is %q, want %q", got, want)
	}
}

// look formats a ServiceImport, the Service that has its address, and its endpoints.
func (s *sharing) look(t *testing.T) string {
	t.Helper()
	var i mcs.ServiceImport
	key := client.ObjectKey{Namespace: "shop", Name: "hello"}
	if err := s.owner.Get(t.Context(), key, &i); err != nil {
		return "none"
	}
	out := []string{string(i.Spec.Type)}
	for _, p := range i.Spec.Ports {
		out = append(out, fmt.Sprintf("%s=%d", p.Name, p.Port))
	}
	for _, c := range i.Status.Clusters {
		out = append(out, c.Cluster[:1])
	}
	var derived corev1.Service
	if err := s.owner.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: endpoints.SetName("hello")}, &derived); err == nil && slices.Equal(derived.Spec.ClusterIPs, i.Spec.IPs) && len(i.Spec.IPs) > 0 {
		out = append(out, "addressed")
	}
	var list discoveryv1.EndpointSliceList
	if err := s.owner.List(t.Context(), &list, client.InNamespace("shop"), client.MatchingLabels{mcs.LabelServiceName: "hello"}); err != nil {
		t.Fatal(err)
	}
	var ends []string
	for _, slice := range list.Items {
		for _, e := range slice.Endpoints {
			end := slice.Labels[mcs.LabelSourceCluster][:1] + "/" + e.Addresses[0]
			if i.Spec.Type == mcs.ClusterSetIP && slice.Labels[discoveryv1.LabelServiceName] == "" {
				end += " unused"
			}
			ends = append(ends, end)
		}
	}
	slices.Sort(ends)
	return strings.Join(append(out, ends...), " ")
}

// A Service that is exported here and by a peer is one ServiceImport, by the agent's own rights:
// it has an address and the endpoints of both, follows what each exports, and goes with the last.
func TestServicesAreSharedOnARealAPIServer(t *testing.T) {
	s := startSharing(t)
	office := &api.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "office"}, Spec: api.ForeignClusterSpec{ClusterID: string(there)}}
	policy := &api.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "a-set"}, Spec: api.PeeringPolicySpec{
		ClusterSet: &api.ClusterSet{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"shared": "yes"}}},
	}}
	contract := peertest.ContractWith(peertest.NewOther(t, "office"), "c-1", api.ContractConsumer)
	contract.Spec.PeerID, contract.Spec.Exposure = string(there), peering.ExposureExported
	contract.Spec.ForeignCluster, contract.Spec.RequestID, contract.Spec.Revision, contract.Spec.PodSecurity = "office", "r-1", 1, "baseline"
	contract.Spec.NotBefore, contract.Spec.NotAfter = metav1.Now(), metav1.NewTime(time.Now().Add(time.Hour))
	contract.Spec.Resources, contract.Spec.Envelope = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}, "{}"
	shop := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"shared": "yes"}}}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "hello"}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "hello"}, Ports: []corev1.ServicePort{{Name: "web", Port: 80}},
	}}
	own := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "hello-1", Labels: map[string]string{discoveryv1.LabelServiceName: "hello"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("web"), Port: new(int32(8080))}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.7"}}},
	}
	export := &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "hello"}}
	s.create(t, office, policy, shop, service, own, export)
	s.shows(t, "ClusterSetIP web=80 a addressed a/10.0.0.7")
	status := contract.Status
	s.create(t, contract)
	contract.Status = status
	if err := s.owner.Status().Update(t.Context(), contract); err != nil {
		t.Fatal(err)
	}
	cluster := func(s *peering.ExportedService) { s.Export.InternalTrafficPolicy = "Cluster" } // as API servers fill in
	older := exported(there, 1, "web:TCP/80 more:TCP/81", cluster).service
	s.say <- []peering.ExportedService{older}
	s.shows(t, "ClusterSetIP web=80 more=81 a b addressed a/10.0.0.7 b/198.18.0.2")
	conflict := func() string {
		if err := s.owner.Get(t.Context(), client.ObjectKeyFromObject(export), export); err != nil {
			t.Fatal(err)
		}
		c := meta.FindStatusCondition(export.Status.Conditions, string(mcs.ServiceExportConditionConflict))
		return string(c.Status) + c.Reason
	}
	if c := conflict(); c != "TruePortConflict" {
		t.Errorf("the conflict is %s", c)
	}
	headless := exported(there, 1, "web:TCP/80", cluster).service
	headless.Service.Headless = true
	s.say <- []peering.ExportedService{headless}
	s.shows(t, "Headless web=80 a b a/10.0.0.7 b/198.18.0.2")
	s.say <- []peering.ExportedService{older}
	s.shows(t, "ClusterSetIP web=80 more=81 a b addressed a/10.0.0.7 b/198.18.0.2")
	// This cluster's own endpoints come first, by policy; those of the peer when none is ready.
	policy.Spec.ClusterSet.Endpoints = api.EndpointsOwnFirst
	if err := s.owner.Update(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	s.shows(t, "ClusterSetIP web=80 more=81 a b addressed a/10.0.0.7 b/198.18.0.2 unused")
	own.Endpoints[0].Conditions.Ready = new(false)
	if err := s.owner.Update(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	s.shows(t, "ClusterSetIP web=80 more=81 a b addressed a/10.0.0.7 b/198.18.0.2")
	t.Logf("failed over after %s", time.Since(start).Round(time.Millisecond))
	if err := s.owner.Delete(t.Context(), export); err != nil {
		t.Fatal(err)
	}
	s.shows(t, "ClusterSetIP web=80 more=81 b addressed b/198.18.0.2")

	// A namespace that is shared no longer loses what came by that, and the agent its rights there.
	shop.Labels = nil
	if err := s.owner.Update(t.Context(), shop); err != nil {
		t.Fatal(err)
	}
	s.shows(t, "none")
	waittest.Eventually(t, "the agent has no rights in a namespace without ServiceImports", func() bool {
		return apierrors.IsNotFound(s.owner.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: ClusterRole}, &rbacv1.RoleBinding{}))
	})

	// Objects of other owners are left alone, also while the agent has its rights.
	theirs := &mcs.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "theirs"}, Spec: mcs.ServiceImportSpec{Type: mcs.Headless, Ports: []mcs.ServicePort{}}}
	s.create(t, theirs)
	if err := kube.Bind(t.Context(), s.r.Client, "shop", ClusterRole, s.r.ServiceAccount); err != nil {
		t.Fatal(err)
	}
	waittest.Eventually(t, "the guard answers", func() bool {
		err := s.r.Direct.Delete(t.Context(), theirs)
		if err == nil {
			t.Fatal("the agent deleted another owner's ServiceImport")
		}
		return strings.Contains(err.Error(), "may touch only")
	})
}
