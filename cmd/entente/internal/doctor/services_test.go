package doctor

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/entente-dev/entente/api/v1alpha1"
)

func TestServicesAreFoundAmongTheWordsOfAPod(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"db.data":                 "data/db",
		"db.data.":                "data/db",
		"db.data.svc":             "data/db",
		"db.data:5432":            "data/db",
		"--upstream=mq.data:5672": "data/mq",
		"postgres://u:p@db.data.svc:5432/db?x=y.z":           "data/db",
		"jdbc:postgresql://db-0.db.data.svc.cluster.local/x": "data/db",
		"a.one,b.two":               "one/a two/b",
		"wget -qO- http://db.data/": "data/db",
		"db.data/path.x":            "data/db",
		"/etc/db.data":              "",
		"./db.data":                 "",
		"Db.data":                   "",
		"db":                        "",
		"svc":                       "",
		"db.svc":                    "",
		"db.shop":                   "", // of the pod's own namespace
		"db-0.db.data":              "",
		"www.example.com":           "",
	} {
		for _, c := range []corev1.Container{
			{Command: []string{"run", text}}, {Args: []string{text}}, {Env: []corev1.EnvVar{{Name: "A", Value: "x"}, {Name: "B", Value: text}}},
		} {
			var got []string
			for _, n := range namedBy(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Spec: corev1.PodSpec{InitContainers: []corev1.Container{c}}}) {
				if n.From != "shop" {
					t.Errorf("%q: of namespace %q", text, n.From)
				}
				got = append(got, n.Namespace+"/"+n.Service)
			}
			// Words that are not a Service are left out where the Services are known.
			got = slices.DeleteFunc(got, func(s string) bool { return s == "z/y" || s == "svc/db" || s == "data/Db" })
			if strings.Join(got, " ") != want {
				t.Errorf("%q names %q, want %q", text, got, want)
			}
		}
	}
}

func TestOnlyPodsAtPeersAndExistingServicesCount(t *testing.T) {
	t.Parallel()
	pod := func(name, node string, words ...string) runtime.Object {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Args: words}}}}
	}
	service := func(namespace, name string, kind corev1.ServiceType) runtime.Object {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{Type: kind}}
	}
	c := fake.NewClientset(
		pod("a", "office", "mq.data", "db.data", "config.yaml"), pod("b", "office", "db.data"), pod("c", "lab", "login.auth", "away.data"), pod("d", "worker", "home.data"),
		service("data", "db", ""), service("data", "mq", ""), service("data", "home", ""), service("auth", "login", ""), service("data", "away", corev1.ServiceTypeExternalName),
	)
	c.PrependReactor("list", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
		all, err := c.Tracker().List(a.GetResource(), schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, "")
		if err != nil {
			return true, nil, err
		}
		node, _ := a.(ktesting.ListAction).GetListRestrictions().Fields.RequiresExactMatch("spec.nodeName")
		of := all.(*corev1.PodList)
		of.Items = slices.DeleteFunc(of.Items, func(p corev1.Pod) bool { return p.Spec.NodeName != node })
		return true, of, nil
	})
	got, err := namedAbroad(t.Context(), c, []string{"lab", "office"})
	want := []Named{{"shop", "auth", "login"}, {"shop", "data", "db"}, {"shop", "data", "mq"}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}

func TestServicesThatAreNotOpenAreFound(t *testing.T) {
	t.Parallel()
	of := func(namespace string, to ...string) v1alpha1.NamespaceOffloading {
		return v1alpha1.NamespaceOffloading{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, Spec: v1alpha1.NamespaceOffloadingSpec{OpenTo: to}}
	}
	ending := of("data", "shop")
	ending.DeletionTimestamp = &metav1.Time{}
	ending.DeletionTimestamp.Time = ending.DeletionTimestamp.AddDate(2026, 0, 0)
	names := func(namespace string, services ...string) (all []Named) {
		for _, s := range services {
			all = append(all, Named{"shop", namespace, s})
		}
		return all
	}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "", nil)
	const local = "to do: if they use them, and whoever is responsible for data agrees: entente offload namespace data --strategy Local --open-to shop"
	for name, tc := range map[string]struct {
		is   Abroad
		want []string // the end of what each finding says
	}{
		"none is named":          {is: Abroad{Read: true}},
		"open to it":             {is: Abroad{Names: names("data", "db"), Offloadings: []v1alpha1.NamespaceOffloading{of("data", "bank", "shop")}}},
		"open to all":            {is: Abroad{Names: names("data", "db"), Offloadings: []v1alpha1.NamespaceOffloading{of("data", "*")}}},
		"the API server":         {is: Abroad{Names: names("default", "kubernetes")}},
		"a namespace that stays": {is: Abroad{Names: append(names("kube-system", "kube-dns"), names("entente-system", "entente-agent")...)}},
		"not offloaded":          {Abroad{Names: names("data", "db", "mq")}, []string{"which is not offloaded, so the names do not resolve there: db, mq; " + local}},
		"no longer offloaded":    {Abroad{Names: names("data", "db"), Offloadings: []v1alpha1.NamespaceOffloading{ending}}, []string{": db; " + local}},
		"open to others": {
			Abroad{Names: names("data", "db"), Offloadings: []v1alpha1.NamespaceOffloading{of("data", "bank")}},
			[]string{"which is not open to them, so connections to its pods here time out: db; to do: if they use them, and whoever is responsible for data agrees: entente offload namespace data --open-to bank,shop"},
		},
		"many, of two": {
			Abroad{Names: append(names("auth", "login"), names("data", "a", "b", "c", "d", "e", "f", "g")...)},
			[]string{"name Services of namespace auth, which is not offloaded, so the names do not resolve there: login; " + strings.ReplaceAll(local, "data", "auth"), ": a, b, c, d, e, 2 more; " + local},
		},
		"no right": {Abroad{Unread: forbidden}, []string{"it is not known which Services pods abroad name: services is forbidden: <nil>; to do: run this with rights to list pods and Services in all namespaces"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := serviceFindings(tc.is, "entente-system", true)
			if len(found) != len(tc.want) {
				t.Fatalf("found %+v, want %d", found, len(tc.want))
			}
			for i, f := range found {
				if says := f.Message + "; to do: " + f.Remedy; f.Severity != Info || f.Area != AreaServices || !strings.HasSuffix(says, tc.want[i]) {
					t.Errorf("%s %s: %s; want %s", f.Severity, f.Area, says, tc.want[i])
				}
			}
			if tc.is.Unread != nil && len(serviceFindings(tc.is, "", false)) > 0 {
				t.Error("whoever did not ask for Services is told of rights")
			}
		})
	}
}

func TestReasonsOfServicesAreExplained(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, reason := range []string{reasonServiceNotOpen, reasonServicesNotChecked} {
		if !strings.Contains(string(page), "### `"+reason+"`") {
			t.Errorf("docs/troubleshooting.md does not explain %s", reason)
		}
	}
}
