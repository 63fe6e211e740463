package volumes

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// atHome is a site whose class names one of home's, with a claim whose pod is placed at home.
func atHome(t *testing.T) *site {
	t.Helper()
	s := newSite(t, asks("both", "home"), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "both"}, Provisioner: api.VolumeDriver, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
		ReclaimPolicy: new(corev1.PersistentVolumeReclaimRetain), Parameters: map[string]string{parameterHome: "local"},
	})
	return s
}

func (s *site) standIn(t *testing.T) *corev1.PersistentVolumeClaim {
	t.Helper()
	c := &corev1.PersistentVolumeClaim{}
	err := s.client.Get(t.Context(), client.ObjectKey{Namespace: "entente-system", Name: Name("u1")}, c)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// provisionHome does what home's provisioner and Kubernetes do for the stand-in claim.
func (s *site) provisionHome(t *testing.T) {
	t.Helper()
	c := s.standIn(t)
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-x"}, Spec: corev1.PersistentVolumeSpec{
		ClaimRef:                      &corev1.ObjectReference{Namespace: c.Namespace, Name: c.Name, UID: c.UID},
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete, StorageClassName: "local",
	}}
	if err := s.client.Create(t.Context(), pv); err != nil {
		t.Fatal(err)
	}
	c.Spec.VolumeName = pv.Name
	if err := s.client.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	c.Status.Phase = corev1.ClaimBound
	if err := s.client.Status().Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

func (s *site) local(t *testing.T) *corev1.PersistentVolume {
	t.Helper()
	pv := &corev1.PersistentVolume{}
	if err := s.client.Get(t.Context(), client.ObjectKey{Name: "pvc-x"}, pv); err != nil {
		t.Fatal(err)
	}
	return pv
}

func TestAPodAtHomeGetsAVolumeOfHome(t *testing.T) {
	s := atHome(t)
	s.reconcile(t)
	in := s.standIn(t)
	if in == nil || *in.Spec.StorageClassName != "local" || in.Annotations[annotationNode] != "home" || in.Spec.Resources.Requests.Storage().String() != "1Gi" {
		t.Fatalf("the stand-in claim is %+v; events %s", in, s.recorded())
	}
	s.provisionHome(t)
	for range 4 {
		s.reconcile(t)
	}
	pv := s.local(t)
	if ref := pv.Spec.ClaimRef; ref.Namespace != "shop" || ref.Name != "data-0" || ref.UID != "u1" ||
		pv.Spec.StorageClassName != "both" || pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		t.Errorf("the volume is %+v", pv.Spec)
	}
	if s.standIn(t) != nil {
		t.Error("the claim that stood in is left, or was made again")
	}
	if len(s.provider.wanted) > 0 {
		t.Errorf("the provider was asked: %v", s.provider.wanted)
	}
}

// A stand-in claim is in the agent's namespace, where a snapshot or claim of the same name may be somebody else's.
func TestAClaimAtHomeThatNamesADataSourceHasNoStandIn(t *testing.T) {
	for name, change := range map[string]func(*corev1.PersistentVolumeClaimSpec){
		"a claim to copy":    func(c *corev1.PersistentVolumeClaimSpec) { c.DataSource = &corev1.TypedLocalObjectReference{} },
		"an object to copy":  func(c *corev1.PersistentVolumeClaimSpec) { c.DataSourceRef = &corev1.TypedObjectReference{} },
		"volumes to look in": func(c *corev1.PersistentVolumeClaimSpec) { c.Selector = &metav1.LabelSelector{} },
	} {
		t.Run(name, func(t *testing.T) {
			s := atHome(t)
			c := s.claim(t)
			change(&c.Spec)
			if err := s.client.Update(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			s.reconcile(t)
			if s.standIn(t) != nil {
				t.Error("there is a stand-in claim")
			}
			if got := s.recorded(); !strings.Contains(got, reasonFailed) || !strings.Contains(got, "remove ") {
				t.Errorf("the claim's events are %q", got)
			}
		})
	}
}

func TestAVolumeOnItsWayToAClaimThatIsGoneGoesItsOwnWay(t *testing.T) {
	for steps := range 4 {
		s := atHome(t)
		s.reconcile(t)
		s.provisionHome(t)
		for range steps {
			once(t, s)
		}
		given := s.local(t).Spec.ClaimRef.UID == "u1"
		if err := s.client.Delete(t.Context(), s.claim(t)); err != nil {
			t.Fatal(err)
		}
		s.reconcile(t)
		want := corev1.PersistentVolumeReclaimDelete
		if given { // Kubernetes released it, and it is the claim's
			want = corev1.PersistentVolumeReclaimRetain
		}
		if pv := s.local(t); pv.Spec.PersistentVolumeReclaimPolicy != want || s.standIn(t) != nil {
			t.Errorf("after %d steps: policy %s, the stand-in claim %v", steps, pv.Spec.PersistentVolumeReclaimPolicy, s.standIn(t))
		}
	}
}

// once reconciles the claim once.
func once(t *testing.T, s *site) {
	t.Helper()
	if _, err := s.reconcileClaim(t.Context(), reconcileRequest()); err != nil {
		t.Fatal(err)
	}
}

func TestEachStepOfHandingAVolumeOver(t *testing.T) {
	claim := func(change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{}
		for _, f := range change {
			f(c)
		}
		return c
	}
	bound := func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimBound }
	going := func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{} }
	volume := func(uid, claimedBy string, policy corev1.PersistentVolumeReclaimPolicy) *corev1.PersistentVolume {
		pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{PersistentVolumeReclaimPolicy: policy, ClaimRef: &corev1.ObjectReference{UID: "s"}}}
		if uid != "" {
			pv.Labels = map[string]string{api.LabelOriginUID: uid}
		}
		if claimedBy != "" {
			pv.Spec.ClaimRef.UID = "u1"
		}
		return pv
	}
	const keep, drop = corev1.PersistentVolumeReclaimRetain, corev1.PersistentVolumeReclaimDelete
	for name, tc := range map[string]struct {
		is   handed
		want localStep
	}{
		"nothing yet":                           {handed{}, localMake},
		"not bound":                             {handed{standIn: claim()}, localWait},
		"bound, its volume not seen":            {handed{standIn: claim(bound)}, localWait},
		"bound":                                 {handed{claim(bound), volume("", "", drop)}, localRetain},
		"held":                                  {handed{claim(bound), volume("u1", "", keep)}, localRelease},
		"retained, the claim being deleted":     {handed{claim(bound, going), volume("u1", "", keep)}, localWait},
		"retained, the claim gone":              {handed{nil, volume("u1", "", keep)}, localBind},
		"given":                                 {handed{nil, volume("u1", "u1", keep)}, localWait},
		"bound, with policy Delete":             {handed{nil, volume("u1", "u1", drop)}, localWait},
		"the claim being deleted, not retained": {handed{claim(going), nil}, localWait},
		"retained, but with policy Delete by now": {handed{nil, volume("u1", "", drop)}, localMake},
	} {
		if got := nextLocal(tc.is); got != tc.want {
			t.Errorf("%s: step %d, want %d", name, got, tc.want)
		}
	}
}
