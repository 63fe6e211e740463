package volumes

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

const gi = 1 << 30

var share = Share{Peer: "p", Contract: "c", Hold: "held/c", AcceptNew: true, Resources: corev1.ResourceList{
	corev1.ResourceName(peering.StorageResource("fast")): resource.MustParse("10Gi"),
}}

// claim is a volume of the contract c that has so many bytes.
func claim(uid string, bytes int64, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			UID: types.UID(uid), Name: Name(uid),
			Labels: map[string]string{api.LabelContract: "c", api.LabelPeer: "p", api.LabelManaged: api.Manager, api.LabelOriginUID: uid}, Annotations: map[string]string{"held/c": "h"},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: new("fast"),
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)}},
		},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func bound(bytes int64) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Status.Phase, c.Status.Capacity = corev1.ClaimBound, corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)}
	}
}

// kept is a volume that no contract holds.
func kept(c *corev1.PersistentVolumeClaim) {
	c.Labels[api.LabelRetained], c.Annotations = "true", nil
}

// in puts a volume into a namespace.
func in(namespace string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Namespace = namespace }
}

// inShop is a volume in another namespace of the consumer.
func inShop(c *corev1.PersistentVolumeClaim) {
	c.Namespace, c.Annotations = "shop-1", map[string]string{api.LabelOriginNamespace: "shop"}
}

func TestVolumesAreDecidedBy(t *testing.T) {
	closing := share
	closing.AcceptNew = false
	many := func(n int, change ...func(*corev1.PersistentVolumeClaim)) (out []*corev1.PersistentVolumeClaim) {
		for i := range n {
			out = append(out, claim(fmt.Sprint("many-", i), 1, change...))
		}
		return out
	}
	for name, tc := range map[string]struct {
		share   Share
		all     []*corev1.PersistentVolumeClaim
		bytes   int64
		class   string
		have    *corev1.PersistentVolumeClaim
		expands bool
		exists  bool
		want    step
		refused string // words of the refusal
		final   bool
	}{
		"a new one":                                {bytes: 10 * gi, want: stepCreate},
		"beyond the contract":                      {bytes: 10*gi + 1, refused: "grants 10Gi"},
		"beyond it with others":                    {bytes: 5 * gi, all: []*corev1.PersistentVolumeClaim{claim("o", 6*gi)}, refused: "other volumes have 6Gi"},
		"beside those of other contracts":          {bytes: 5 * gi, all: []*corev1.PersistentVolumeClaim{claim("o", 6*gi, func(c *corev1.PersistentVolumeClaim) { c.Labels[api.LabelContract], c.Annotations = "d", nil })}, want: stepCreate},
		"beside a kept volume":                     {bytes: 5 * gi, all: []*corev1.PersistentVolumeClaim{claim("o", 6*gi, kept)}, want: stepCreate},
		"a class that is not granted":              {bytes: 1, class: "slow", refused: "no storage of class slow", final: true},
		"a contract that ends":                     {share: closing, bytes: 1, refused: "is ending", final: true},
		"too many of a contract":                   {bytes: 1, all: many(maxPerContract), refused: "at most 300 volumes"},
		"too many of a consumer":                   {bytes: 1, all: many(maxPerPeer, kept), refused: "at most 600 volumes"},
		"what others of a contract are left":       {bytes: 1, all: many(maxPerContract-maxPerContract/8, in("shop")), refused: "at most 300 volumes, and what is left of that is for other namespaces"},
		"the last that one namespace takes":        {bytes: 1, all: many(maxPerContract-maxPerContract/8-1, in("shop")), want: stepCreate},
		"beside a namespace that has most":         {bytes: 1, all: many(maxPerContract-maxPerContract/8, in("billing")), want: stepCreate},
		"what others of a consumer are left":       {bytes: 1, all: many(maxPerPeer-maxPerPeer/8, kept, in("shop")), refused: "at most 600 volumes at the provider, kept ones included, and what is left of that is for other namespaces"},
		"beside a namespace that keeps most":       {bytes: 1, all: many(maxPerPeer-maxPerPeer/8, kept, in("billing")), want: stepCreate},
		"one of all that there may be":             {bytes: gi, all: many(maxPerContract-1, in("shop")), have: claim("v", gi, bound(gi), in("shop")), want: stepHold},
		"more of one where others are left some":   {bytes: 2 * gi, all: many(maxPerContract-1, in("shop")), have: claim("v", gi, bound(gi), in("shop")), expands: true, want: stepGrow},
		"a kept volume where others are left some": {bytes: gi, all: many(maxPerContract-maxPerContract/8, in("shop")), have: claim("v", gi, bound(gi), kept, in("shop")), want: stepHold},
		"the same again":                           {bytes: gi, have: claim("v", gi, bound(gi)), want: stepHold},
		"not mounted yet":                          {bytes: gi, have: claim("v", gi), want: stepHold},
		"the same again by a contract that ends":   {share: closing, bytes: gi, have: claim("v", gi, bound(gi)), want: stepHold},
		"less than it has":                         {bytes: gi, have: claim("v", 2*gi, bound(2*gi)), want: stepHold},
		"what was kept":                            {bytes: gi, have: claim("v", gi, bound(gi), kept), want: stepHold},
		"a kept volume that no longer fits":        {bytes: gi, have: claim("v", 11*gi, bound(11*gi), kept), refused: "asks for 11Gi"},
		"another class":                            {bytes: gi, class: "slow", have: claim("v", gi), refused: "never changes", final: true},
		"more":                                     {bytes: 2 * gi, have: claim("v", gi, bound(gi)), expands: true, want: stepGrow},
		"more, of itself counted once":             {bytes: 10 * gi, have: claim("v", 9*gi, bound(9*gi)), expands: true, want: stepGrow},
		"more than the contract grants":            {bytes: 11 * gi, have: claim("v", gi, bound(gi)), expands: true, refused: "asks for 11Gi"},
		"more of a class that cannot":              {bytes: 2 * gi, have: claim("v", gi, bound(gi)), refused: "cannot be expanded", final: true},
		"more by a contract that ends":             {share: closing, bytes: 2 * gi, have: claim("v", gi, bound(gi)), expands: true, refused: "is ending", final: true},
		"more before it is mounted":                {bytes: 2 * gi, have: claim("v", gi), expands: true, refused: "not mounted yet"},
		"while it grows":                           {bytes: 2 * gi, have: claim("v", 2*gi, bound(gi)), expands: true, refused: "still has 1Gi"},
		"one that has to exist":                    {exists: true, bytes: gi, have: claim("v", gi, bound(gi)), want: stepHold},
		"one that has to exist and does not":       {exists: true, bytes: gi, refused: "is gone, with its data"},
		"one that is in another namespace":         {bytes: gi, all: []*corev1.PersistentVolumeClaim{claim("v", gi, inShop)}, refused: "in namespace shop-1 of the provider"},
		"one that has to exist and is elsewhere":   {exists: true, bytes: gi, all: []*corev1.PersistentVolumeClaim{claim("v", gi, kept, inShop)}, refused: "in namespace shop-1 of the provider"},
		"while it is deleted":                      {bytes: gi, have: claim("v", gi, func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{} }), refused: "being deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.share.Contract == "" {
				tc.share = share
			}
			if tc.class == "" {
				tc.class = "fast"
			}
			if tc.have != nil {
				tc.all = append(tc.all, tc.have)
			}
			got, refusal := decide(tc.share, tc.all, "shop", "v", peering.ClaimObject{StorageClass: tc.class, Bytes: tc.bytes, Exists: tc.exists}, tc.have, tc.expands)
			if tc.refused == "" {
				if refusal != nil || got != tc.want {
					t.Errorf("step %d, %v; want step %d", got, refusal, tc.want)
				}
				return
			}
			if refusal == nil || !strings.Contains(refusal.Message, tc.refused) || refusal.Retryable == tc.final {
				t.Errorf("got %+v, want a refusal about %q, final %t", refusal, tc.refused, tc.final)
			}
		})
	}
}

func TestClaimsAreValidated(t *testing.T) {
	const uid = "2b1c"
	good := peering.ClaimObject{Claim: "data-0", StorageClass: "fast", Bytes: gi, AccessModes: []string{"ReadWriteOnce"}}
	for name, tc := range map[string]struct {
		change func(*peering.ClaimObject)
		name   string
		raw    string
		// says is part of the refusal; "" means no refusal.
		says string
	}{
		"good":                {},
		"another name":        {name: "data-0", says: "its name is not"},
		"the name of another": {name: Name("other"), says: "its name is not"},
		"no size":             {change: func(c *peering.ClaimObject) { c.Bytes = 0 }, says: "its size"},
		"a negative size":     {change: func(c *peering.ClaimObject) { c.Bytes = -1 }, says: "its size"},
		"larger than any":     {change: func(c *peering.ClaimObject) { c.Bytes = maxBytes + 1 }, says: "its size"},
		"no class":            {change: func(c *peering.ClaimObject) { c.StorageClass = "" }, says: "the claim has no storage class: set spec.storageClassName"},
		"a path for a class":  {change: func(c *peering.ClaimObject) { c.StorageClass = "../x" }, says: `storage class "../x"`},
		"no access mode":      {change: func(c *peering.ClaimObject) { c.AccessModes = nil }, says: "1 to"},
		"many access modes":   {change: func(c *peering.ClaimObject) { c.AccessModes = make([]string, 5) }, says: "1 to"},
		"an unknown mode":     {change: func(c *peering.ClaimObject) { c.AccessModes = []string{"Own"} }, says: `unknown access mode "Own"`},
		"no JSON":             {raw: "{", says: "unexpected end"},
		"too much":            {raw: `{"claim":"` + strings.Repeat("x", maxClaimBytes) + `"}`, says: "the limit is"},
	} {
		t.Run(name, func(t *testing.T) {
			c := good
			if tc.change != nil {
				tc.change(&c)
			}
			data, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			if tc.raw != "" {
				data = []byte(tc.raw)
			}
			o := peering.Object{Ref: peering.ObjectRef{Kind: peering.KindClaim, Namespace: "shop", Name: Name(uid), UID: uid}, JSON: data}
			if tc.name != "" {
				o.Ref.Name = tc.name
			}
			if _, refusal := read(o); (refusal != nil) != (tc.says != "") || refusal != nil && (refusal.Retryable || refusal.Reason != peering.RefusedInvalid || !strings.Contains(refusal.Message, tc.says)) {
				t.Errorf("got %v, want a refusal that says %q", refusal, tc.says)
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	f.Add("entente-u", "u", []byte(`{"claim":"c","storageClass":"fast","bytes":1,"accessModes":["ReadWriteOnce"]}`))
	f.Fuzz(func(t *testing.T, name, uid string, data []byte) {
		o := peering.Object{Ref: peering.ObjectRef{Kind: peering.KindClaim, Namespace: "n", Name: name, UID: uid}, JSON: data}
		c, refusal := read(o)
		if refusal != nil {
			return
		}
		made := newClaim(share, "n", o, c)
		if size(made) <= 0 || size(made) > maxBytes || made.Name != Name(uid) || len(made.Spec.AccessModes) > maxAccessModes || len(classOf(made)) > 253 {
			t.Errorf("made %+v", made)
		}
	})
}

func TestUsageCountsWhatAContractHolds(t *testing.T) {
	all := []*corev1.PersistentVolumeClaim{
		claim("a", gi), claim("b", 2*gi), claim("kept", 4*gi, kept),
		claim("other", 8*gi, func(c *corev1.PersistentVolumeClaim) {
			c.Labels[api.LabelContract], c.Annotations = "d", map[string]string{"held/d": "h"}
		}),
		claim("slow", 16*gi, func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = new("slow") }),
	}
	got := Usage(all, "c", "held/c")
	fast, slow := got[corev1.ResourceName(peering.StorageResource("fast"))], got[corev1.ResourceName(peering.StorageResource("slow"))]
	if fast.Value() != 3*gi || slow.Value() != 16*gi || len(got) != 2 {
		t.Errorf("usage %v", got)
	}
}
