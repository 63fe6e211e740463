package pages

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// Lists are read piece by piece, and of each piece is kept what is read of it.
func TestListsAreReadInPages(t *testing.T) {
	t.Parallel()
	const pages = 3
	var asked []string
	c := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			o := (&client.ListOptions{}).ApplyOptions(opts)
			if o.Limit != pageSize || o.Raw != nil {
				t.Errorf("asked for %d with %v", o.Limit, o.Raw)
			}
			asked = append(asked, o.Continue)
			l := list.(*corev1.ConfigMapList)
			l.ResourceVersion = "7"
			if len(asked) < pages {
				l.Continue = fmt.Sprint("page ", len(asked)+1)
			}
			l.Items = []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("map-", len(asked))}, Data: map[string]string{"long": "text"}}}
			return nil
		},
	})
	keep := func(o any) (any, error) {
		o.(*corev1.ConfigMap).Data = nil
		return o, nil
	}
	got, err := ListWatch(c, func() client.ObjectList { return &corev1.ConfigMapList{} }, keep).(listWatch).
		ListWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	list := got.(*corev1.ConfigMapList)
	if diff := cmp.Diff([]string{"", "page 2", "page 3"}, asked); diff != "" || len(list.Items) != pages || list.ResourceVersion != "7" || list.Continue != "" {
		t.Errorf("%d items at %q; pages (-want +got):\n%s", len(list.Items), list.ResourceVersion, diff)
	}
	for _, o := range list.Items {
		if o.Data != nil {
			t.Errorf("%s is kept with %v", o.Name, o.Data)
		}
	}
}
