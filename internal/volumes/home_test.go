package volumes

import (
	"maps"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// provider records home's requests to the provider of a contract.
type provider struct {
	mu        sync.Mutex
	contracts []Contract
	wanted    map[string]peering.Object
	unwanted  map[string]bool
	calls     []string
	forms     map[string]string // what was last asked of a contract
}

func (p *provider) Contracts(peering.ClusterID) []Contract { return p.contracts }

func (p *provider) Want(contract string, o peering.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, "want "+contract)
	p.forms[contract] = string(o.JSON)
	p.wanted[o.Ref.UID] = o
}

func (p *provider) Unwant(contract string, ref peering.ObjectRef) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, "unwant "+contract)
	delete(p.wanted, ref.UID)
	p.unwanted[ref.UID] = true
}

// site is a home cluster with a virtual node, a provider behind it, and what happened.
type site struct {
	*Home
	client   client.Client
	provider *provider
	events   *events.FakeRecorder
}

func newSite(t *testing.T, objects ...client.Object) *site {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	objects = append(objects,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "office.entente.dev", Labels: map[string]string{api.LabelVirtualNode: "true", api.LabelPeer: "p", api.LabelContract: "c"}}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "home"}},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "entente"}, Provisioner: api.VolumeDriver, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer), ReclaimPolicy: new(corev1.PersistentVolumeReclaimRetain)},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "slow"}, Provisioner: api.VolumeDriver, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer), Parameters: map[string]string{parameterClass: "slow"}},
	)
	s := &site{
		client:   fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}).Build(),
		provider: &provider{contracts: []Contract{{ID: "c", Resources: share.Resources}}, wanted: map[string]peering.Object{}, unwanted: map[string]bool{}, forms: map[string]string{}},
		events:   events.NewFakeRecorder(64),
	}
	s.Home = &Home{
		Client: s.client, Reader: s.client, Providers: s.provider, Events: s.events, Changed: func(string) {}, Namespace: "entente-system",
		acks: map[request]ack{}, claims: make(chan event.GenericEvent, 64), volumes: make(chan event.GenericEvent, 64),
	}
	return s
}

// asks is a claim whose pod was placed on a node.
func asks(class, node string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "data-0", UID: "u1", Annotations: map[string]string{annotationProvisioner: api.VolumeDriver, annotationNode: node},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func (s *site) claim(t *testing.T) *corev1.PersistentVolumeClaim {
	t.Helper()
	c := &corev1.PersistentVolumeClaim{}
	if err := s.client.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "data-0"}, c); err != nil {
		t.Fatal(err)
	}
	return c
}

func reconcileRequest() reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "shop", Name: "data-0"}}
}

func (s *site) reconcile(t *testing.T) {
	t.Helper()
	for range 2 {
		if _, err := s.reconcileClaim(t.Context(), reconcileRequest()); err != nil {
			t.Fatal(err)
		}
		if _, err := s.reconcileVolume(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: Name("u1")}}); err != nil {
			t.Fatal(err)
		}
	}
}

// volume returns the volume at home, or nil.
func (s *site) volume(t *testing.T) *corev1.PersistentVolume {
	t.Helper()
	pv := &corev1.PersistentVolume{}
	err := s.client.Get(t.Context(), client.ObjectKey{Name: Name("u1")}, pv)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return pv
}

// answer acknowledges the last request to the provider.
func (s *site) answer(refusal *peering.Refusal) {
	s.provider.mu.Lock()
	o, ok := s.provider.wanted["u1"]
	s.provider.mu.Unlock()
	if !ok {
		s.Ack("c", peering.Ack{Ref: peering.ObjectRef{Kind: peering.KindClaim, Namespace: "shop", Name: Name("u1"), UID: "u1"}, Refusal: refusal})
		return
	}
	s.Ack("c", peering.Ack{Ref: o.Ref, Hash: o.Hash(), Refusal: refusal})
}

func (s *site) recorded() string {
	var out []string
	for {
		select {
		case e := <-s.events.Events:
			out = append(out, e)
		default:
			return strings.Join(out, "\n")
		}
	}
}

func TestAClaimIsProvisionedWhereItsPodWasPlaced(t *testing.T) {
	s := newSite(t, asks("entente", "office.entente.dev"))
	s.reconcile(t)
	if s.volume(t) != nil {
		t.Fatal("there is a volume before the provider made one")
	}
	if o := s.provider.wanted["u1"]; string(o.JSON) != `{"claim":"data-0","storageClass":"fast","bytes":1073741824,"accessModes":["ReadWriteOnce"]}` || o.Ref.Name != Name("u1") || o.Ref.Namespace != "shop" {
		t.Fatalf("asked for %s %s", o.Ref, o.JSON)
	}
	s.answer(nil)
	s.reconcile(t)
	pv := s.volume(t)
	if pv == nil {
		t.Fatalf("no volume; events: %s", s.recorded())
	}
	if pv.Spec.ClaimRef.UID != "u1" || pv.Spec.CSI.Driver != api.VolumeDriver || pv.Spec.CSI.VolumeAttributes[api.VolumePeer] != "p" ||
		pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || pv.Spec.StorageClassName != "entente" {
		t.Errorf("volume %+v", pv.Spec)
	}
	if e := pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]; e.Key != api.LabelPeer || e.Values[0] != "p" {
		t.Errorf("it is bound to nodes by %+v", e)
	}
}

func TestAClaimThatCannotBeProvisionedSaysWhy(t *testing.T) {
	block := corev1.PersistentVolumeBlock
	for name, tc := range map[string]struct {
		claim   *corev1.PersistentVolumeClaim
		grants  corev1.ResourceList
		refusal *peering.Refusal
		words   string
		back    bool
	}{
		"a block device":    {claim: asks("entente", "office.entente.dev", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = &block }), words: "block devices", back: true},
		"a copy of another": {claim: asks("entente", "office.entente.dev", func(c *corev1.PersistentVolumeClaim) { c.Spec.DataSource = &corev1.TypedLocalObjectReference{} }), words: "begins empty", back: true},
		"a selector":        {claim: asks("entente", "office.entente.dev", func(c *corev1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} }), words: "no labels", back: true},
		"a node of home":    {claim: asks("entente", "home"), words: "entente.dev/pod-strategy: Remote", back: true},
		"a node that went":  {claim: asks("entente", "gone"), words: "is gone", back: true},
		"no storage":        {claim: asks("entente", "office.entente.dev"), grants: corev1.ResourceList{"cpu": resource.MustParse("1")}, words: "grants no storage", back: true},
		"another class":     {claim: asks("slow", "office.entente.dev"), words: "none of class slow", back: true},
		"one of two": {claim: asks("entente", "office.entente.dev"), grants: corev1.ResourceList{
			corev1.ResourceName(peering.StorageResource("a")): resource.MustParse("1Gi"), corev1.ResourceName(peering.StorageResource("b")): resource.MustParse("1Gi"),
		}, words: "a, b; use a storage class", back: true},
		"refused permanently": {claim: asks("entente", "office.entente.dev"), refusal: &peering.Refusal{Message: "never so"}, words: "never so", back: true},
		"refused for a time":  {claim: asks("entente", "office.entente.dev"), refusal: &peering.Refusal{Message: "too much", Retryable: true}, words: "too much"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, tc.claim)
			if tc.grants != nil {
				s.provider.contracts[0].Resources = tc.grants
			}
			s.reconcile(t)
			if tc.refusal != nil {
				s.answer(tc.refusal)
				s.reconcile(t)
			}
			// The provider that refused it must keep none of it.
			if next, err := s.reconcileClaim(t.Context(), reconcileRequest()); err != nil || !tc.back && next.RequeueAfter == 0 {
				t.Errorf("it is asked for again %+v, %v", next, err)
			}
			if got := s.recorded(); !strings.Contains(got, reasonFailed) || !strings.Contains(got, tc.words) {
				t.Errorf("events %q, want %q", got, tc.words)
			}
			if _, placed := s.claim(t).Annotations[annotationNode]; placed == tc.back {
				t.Errorf("the claim is still for its node: %t", placed)
			}
			if _, wanted := s.provider.wanted["u1"]; wanted == tc.back || s.volume(t) != nil {
				t.Errorf("wanted %t, volume %v", wanted, s.volume(t))
			}
		})
	}
}

// bind does what Kubernetes does when it sees the volume.
func (s *site) bind(t *testing.T) {
	t.Helper()
	c, pv := s.claim(t), s.volume(t)
	c.Spec.VolumeName = pv.Name
	if err := s.client.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	c.Status.Phase, c.Status.Capacity = corev1.ClaimBound, maps.Clone(pv.Spec.Capacity)
	if err := s.client.Status().Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

func provisioned(t *testing.T, change ...func(*corev1.PersistentVolumeClaim)) *site {
	t.Helper()
	s := newSite(t, asks("entente", "office.entente.dev", change...))
	s.reconcile(t)
	s.answer(nil)
	s.reconcile(t)
	s.bind(t)
	s.reconcile(t)
	return s
}

func TestAClaimThatAsksForMoreHasItOnceTheProviderSaysSo(t *testing.T) {
	s := provisioned(t)
	c := s.claim(t)
	c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("3Gi")
	if err := s.client.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	has := func() string {
		return s.claim(t).Status.Capacity.Storage().String() + " of " + s.volume(t).Spec.Capacity.Storage().String()
	}
	s.reconcile(t)
	if has() != "1Gi of 1Gi" || !strings.Contains(string(s.provider.wanted["u1"].JSON), "3221225472") {
		t.Fatalf("it has %s, and asked for %s", has(), s.provider.wanted["u1"].JSON)
	}
	s.answer(&peering.Refusal{Message: "cannot grow"})
	s.reconcile(t)
	if got := s.recorded(); has() != "1Gi of 1Gi" || !strings.Contains(got, "cannot grow") {
		t.Fatalf("it has %s; events %s", has(), got)
	}
	s.answer(nil)
	s.reconcile(t)
	if has() != "3Gi of 3Gi" {
		t.Errorf("it has %s", has())
	}
}

func TestOnlyAnOrderDeletesAVolume(t *testing.T) {
	ofAPod := func(c *corev1.PersistentVolumeClaim) {
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "pod", Controller: new(true)}}
	}
	release := func(t *testing.T, s *site) {
		t.Helper()
		if err := s.client.Delete(t.Context(), s.claim(t)); err != nil {
			t.Fatal(err)
		}
		pv := s.volume(t)
		pv.Status.Phase = corev1.VolumeReleased
		if err := s.client.Status().Update(t.Context(), pv); err != nil {
			t.Fatal(err)
		}
	}
	policy := func(t *testing.T, s *site) {
		t.Helper()
		pv := s.volume(t)
		pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		if err := s.client.Update(t.Context(), pv); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		change []func(*corev1.PersistentVolumeClaim)
		do     func(t *testing.T, s *site)
		goes   bool
	}{
		"the claim is deleted":                  {do: release},
		"that, and the policy is Delete":        {do: func(t *testing.T, s *site) { t.Helper(); release(t, s); policy(t, s) }, goes: true},
		"the policy is Delete, the claim there": {do: policy},
		"the claim of a pod alone is deleted":   {change: []func(*corev1.PersistentVolumeClaim){ofAPod}, do: release, goes: true},
		"released, the claim still there": {do: func(t *testing.T, s *site) {
			t.Helper()
			policy(t, s)
			pv := s.volume(t)
			pv.Status.Phase = corev1.VolumeReleased
			if err := s.client.Status().Update(t.Context(), pv); err != nil {
				t.Fatal(err)
			}
		}},
		"the volume is deleted at home": {do: func(t *testing.T, s *site) {
			t.Helper()
			if err := s.client.Delete(t.Context(), s.volume(t)); err != nil {
				t.Fatal(err)
			}
		}},
		"the contract ends": {do: func(_ *testing.T, s *site) { s.provider.contracts = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			s := provisioned(t, tc.change...)
			tc.do(t, s)
			s.reconcile(t)
			if s.provider.unwanted["u1"] != tc.goes {
				t.Fatalf("the provider was asked to delete it: %t", s.provider.unwanted["u1"])
			}
			if !tc.goes {
				return
			}
			s.answer(&peering.Refusal{Message: "not now", Retryable: true})
			s.reconcile(t)
			if s.volume(t) == nil {
				t.Fatal("the volume went at home before it did at the provider")
			}
			s.answer(nil)
			s.reconcile(t)
			if s.volume(t) != nil {
				t.Error("the volume is left at home")
			}
		})
	}
}

func TestUsageIsOfTheContractThatKeepsAVolume(t *testing.T) {
	s := provisioned(t)
	for contract, want := range map[string]int64{"c": gi, "d": 0} {
		used, err := s.Usage(t.Context(), "p", contract)
		q := used[corev1.ResourceName(peering.StorageResource("fast"))]
		if err != nil || q.Value() != want {
			t.Errorf("contract %s uses %v, %v", contract, used, err)
		}
	}
}
