package podspec

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// withToken is a pod as the admission of its home makes it.
func withToken(annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "u", Annotations: annotations},
		Spec: corev1.PodSpec{
			ServiceAccountName: "web",
			Containers: []corev1.Container{
				{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "kube-api-access-x7z", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true}}},
				{Name: "own", Env: []corev1.EnvVar{{Name: "KUBERNETES_SERVICE_HOST", Value: "192.0.2.1"}}},
			},
			Volumes: []corev1.Volume{{Name: "kube-api-access-x7z", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}}},
			}}}}},
		},
	}
}

// atProvider returns a pod as a provider admits it, and whether it asks for the API of its home.
func atProvider(t *testing.T, pod *corev1.Pod, terms Terms) (*Template, bool, error) {
	t.Helper()
	left, refusal := Leave(pod)
	if refusal != nil {
		t.Fatal(refusal)
	}
	raw, err := json.Marshal(left.Pod)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(raw), "serviceAccountToken") {
		t.Fatalf("a token is sent: %s", raw)
	}
	var template Template
	if err := json.Unmarshal(raw, &template); err != nil {
		t.Fatal(err)
	}
	asks, err := AsksHomeAPI(&template, terms)
	if err == nil {
		err = Admit(&template, terms)
	}
	return &template, asks, err
}

func TestAPodAbroadFindsTheAPIOfItsHomeWhereClientsLook(t *testing.T) {
	t.Parallel()
	home := HomeAPI{Address: netip.MustParseAddr("10.96.7.7"), CA: "a certificate"}
	got, asks, err := atProvider(t, withToken(map[string]string{api.AnnotationHomeAPI: "true"}), Terms{HomeAPI: &home})
	if err != nil || !asks {
		t.Fatalf("asks %t, %v", asks, err)
	}
	PlaceHomeAPI(got, home, "shop", "cluster.local")
	want := map[string]string{}
	for _, item := range got.Spec.Volumes[0].DownwardAPI.Items {
		of, key, _ := fieldKey(item.FieldRef.FieldPath)
		if of != "annotations" {
			t.Errorf("file %s is of %s", item.Path, of)
		}
		want[item.Path] = got.Metadata.Annotations[key]
	}
	if diff := cmp.Diff(map[string]string{"ca.crt": "a certificate", "namespace": "shop", "token": "added-at-home"}, want); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if len(got.Spec.Containers[0].VolumeMounts) != 1 {
		t.Errorf("the files are mounted %d times", len(got.Spec.Containers[0].VolumeMounts))
	}
	host := func(c corev1.Container) (out string) {
		for _, e := range c.Env {
			if e.Name == "KUBERNETES_SERVICE_HOST" {
				out += e.Value
			}
		}
		return out
	}
	if a, b := host(got.Spec.Containers[0]), host(got.Spec.Containers[1]); a != "10.96.7.7" || b != "192.0.2.1" {
		t.Errorf("hosts %q and %q", a, b)
	}
	if diff := cmp.Diff([]corev1.HostAlias{{IP: "10.96.7.7", Hostnames: HomeAPINames()}}, got.Spec.HostAliases); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if _, ok := got.Metadata.Annotations[api.AnnotationHomeAPI]; ok {
		t.Error("the annotation with a domain stays at the provider")
	}
}

func TestAPodThatAsksForAnAPIThatIsNotCarriedIsRefusedUnlessItRuns(t *testing.T) {
	t.Parallel()
	asking := withToken(map[string]string{api.AnnotationHomeAPI: "true"})
	if _, _, err := atProvider(t, asking, Terms{}); !errors.Is(err, ErrHomeAPI) {
		t.Errorf("a new pod: %v", err)
	}
	if _, asks, err := atProvider(t, asking, Terms{Was: &corev1.PodSpec{}}); err != nil || asks {
		t.Errorf("a pod that is here: asks %t, %v", asks, err)
	}
}

func TestAPodThatDoesNotAskHasNothingInPlaceOfItsToken(t *testing.T) {
	t.Parallel()
	for _, annotations := range []map[string]string{nil, {api.AnnotationHomeAPI: "false"}, {api.AnnotationHomeAPI: "True"}} {
		got, asks, err := atProvider(t, withToken(annotations), Terms{HomeAPI: &HomeAPI{}})
		if err != nil || asks || len(got.Spec.Volumes) != 0 || len(got.Spec.Containers[0].VolumeMounts) != 0 {
			t.Errorf("%v: asks %t, volumes %v, %v", annotations, asks, got.Spec.Volumes, err)
		}
	}
}
