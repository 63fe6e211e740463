package podspec

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

func TestAPodThatAsksReadsItsAddressesOfHome(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		annotation string
		env        []corev1.EnvVar
		asks       bool
		want       []corev1.EnvVar
		// note is whether the pod has an annotation for the addresses.
		note bool
	}{
		"one that asks": {
			annotation: "Home", env: []corev1.EnvVar{fieldEnv("IP", "status.podIP"), fieldEnv("IPS", "status.podIPs"), {Name: "URL", Value: "http://$(IP)"}}, asks: true, note: true,
			want: []corev1.EnvVar{configEnv("IP", "podIP"), configEnv("IPS", "podIPs"), {Name: "URL", Value: "http://$(IP)"}},
		},
		"one that asks and reads none": {annotation: "Home", env: []corev1.EnvVar{{Name: "A", Value: "b"}}, asks: true, want: []corev1.EnvVar{{Name: "A", Value: "b"}}},
		"one that does not ask":        {env: []corev1.EnvVar{fieldEnv("IP", "status.podIP")}, want: []corev1.EnvVar{fieldEnv("IP", "status.podIP")}},
		"one that asks for something else": {
			annotation: "Away", env: []corev1.EnvVar{fieldEnv("IP", "status.podIP")}, want: []corev1.EnvVar{fieldEnv("IP", "status.podIP")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u", Annotations: map[string]string{api.AnnotationPodIP: tt.annotation}},
				Spec:       corev1.PodSpec{InitContainers: []corev1.Container{{Name: "i", Env: tt.env}}, Containers: []corev1.Container{{Name: "c"}}},
			}
			left, refusal := Leave(pod)
			if refusal != nil {
				t.Fatal(refusal)
			}
			if ignored := tt.annotation != "Home"; ignored != (len(left.Notes) > 0) {
				t.Errorf("the notes are %q", left.Notes)
			}
			var template Template
			template.Metadata.Annotations, template.Spec = left.Pod.Annotations, left.Pod.Spec
			if asks := AsksHomeIP(&template); asks != tt.asks {
				t.Fatalf("asks %t", asks)
			}
			if err := Admit(&template, Terms{}); err != nil {
				t.Fatal(err)
			}
			if tt.asks {
				PlaceHomeIP(&template, "addresses")
			}
			if diff := cmp.Diff(tt.want, template.Spec.InitContainers[0].Env); diff != "" {
				t.Errorf("environment (-want +got):\n%s", diff)
			}
			if _, note := template.Metadata.Annotations[api.AnnotationHomeIPs]; note != tt.note {
				t.Errorf("annotations %v", template.Metadata.Annotations)
			}
		})
	}
}

func configEnv(name, key string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: "addresses"}, Key: key,
	}}}
}

func TestHomeAddressesAreSetOnlyWhenAllAreKnown(t *testing.T) {
	t.Parallel()
	known := map[string]string{"10.0.0.7": "198.18.0.7", "fd00::7": "fd01::7"}
	atHome := func(a netip.Addr) (netip.Addr, bool) {
		if a == netip.MustParseAddr("2001:db8::7") {
			return netip.Addr{}, true
		}
		home, ok := known[a.String()]
		if !ok {
			return netip.Addr{}, false
		}
		return netip.MustParseAddr(home), true
	}
	for name, tt := range map[string]struct {
		ips  []string
		note string
	}{
		"none yet":                        {},
		"one":                             {[]string{"10.0.0.7"}, "198.18.0.7"},
		"one of each family":              {[]string{"10.0.0.7", "fd00::7"}, "198.18.0.7,fd01::7"},
		"one of which home does not know": {[]string{"10.0.0.7", "fd00::8"}, ""},
		"one of a family that home lacks": {[]string{"2001:db8::7", "10.0.0.7"}, "198.18.0.7"},
		"only of a family that it lacks":  {[]string{"2001:db8::7"}, ""},
		"an invalid address":              {[]string{"10.0.0.7.8"}, ""},
		"one in another spelling":         {[]string{"::ffff:10.0.0.7"}, "198.18.0.7"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ips []corev1.PodIP
			for _, ip := range tt.ips {
				ips = append(ips, corev1.PodIP{IP: ip})
			}
			data, note, ok := HomeIPs(ips, atHome)
			if ok != (tt.note != "") || note != tt.note || data["podIPs"] != tt.note {
				t.Errorf("%v, %q, %t; want %q", data, note, ok, tt.note)
			}
		})
	}
}
