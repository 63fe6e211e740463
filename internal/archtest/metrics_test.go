package archtest

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// docs/metrics.md has each metric that the code names, and no other.
func TestMetricsAreThoseOfTheDocs(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := metricsIn(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if len(metrics) < 5 {
		t.Errorf("%d metrics are found; the code is read wrongly", len(metrics))
	}
	for _, problem := range checkMetrics(metrics, string(page)) {
		t.Error(problem)
	}
}

// metric is a metric of the code: the string literals of its file, which its labels are
// among, and whether that makes histograms.
type metric struct {
	file      string
	words     map[string]bool
	histogram bool
}

var metricName = regexp.MustCompile(`\bentente_[a-z0-9_]+`)

// metricsIn returns the metrics that are named in files that import Prometheus.
func metricsIn(root fs.FS) (map[string]metric, error) {
	metrics := map[string]metric{}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch base := path.Base(name); {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (strings.HasPrefix(base, ".") || slices.Contains([]string{"bin", "testdata", "gen", "integration"}, base)):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		source, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool {
			return i.Path.Value == `"github.com/prometheus/client_golang/prometheus"`
		}) {
			return nil
		}
		words, histograms := map[string]bool{}, false
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); err == nil {
					words[text] = true
				}
			case *ast.SelectorExpr:
				histograms = histograms || strings.Contains(n.Sel.Name, "Histogram")
			}
			return true
		})
		for word := range words {
			if metricName.FindString(word) == word && word != "" {
				metrics[word] = metric{file: name, words: words, histogram: histograms}
			}
		}
		return nil
	})
	return metrics, err
}

// checkMetrics says what is wrong with the page.
func checkMetrics(metrics map[string]metric, page string) (problems []string) {
	told := map[string]bool{}
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		name := strings.Trim(cells[0], " `")
		m, known := metrics[name]
		if !known || len(cells) != 5 {
			continue
		}
		told[name] = true
		kind := "gauge"
		switch {
		case strings.HasSuffix(name, "_total"): // as Prometheus's conventions have it
			kind = "counter"
		case m.histogram && strings.Contains(cells[1], "histogram"):
			kind = "histogram"
		}
		if got := strings.TrimSpace(cells[1]); got != kind {
			problems = append(problems, fmt.Sprintf("%s is called a %s, and is a %s", name, cmp.Or(got, "nothing"), kind))
		}
		for _, label := range strings.FieldsFunc(cells[2], func(r rune) bool { return strings.ContainsRune(" ,`", r) }) {
			if !m.words[label] {
				problems = append(problems, fmt.Sprintf("%s has no label %s in %s", name, label, m.file))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(metrics)) {
		if !told[name] {
			problems = append(problems, fmt.Sprintf("%s of %s has no row", name, metrics[name].file))
		}
	}
	for _, name := range metricName.FindAllString(page, -1) {
		if _, ok := metrics[name]; !ok {
			problems = append(problems, fmt.Sprintf("there is no metric %s", name))
		}
	}
	return problems
}

func TestMetricsThatDifferAreFound(t *testing.T) {
	t.Parallel()
	metrics, err := metricsIn(fstest.MapFS{
		"x/x.go":      {Data: []byte("package x\n\nimport \"github.com/prometheus/client_golang/prometheus\"\n\nvar a, b = \"entente_a_seconds\", \"peer\"\n")},
		"x/other.go":  {Data: []byte("package x\n\nvar c = \"entente_c\"\n")},
		"x/x_test.go": {Data: []byte("package x\n\nimport \"github.com/prometheus/client_golang/prometheus\"\n\nvar d = \"entente_d\"\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(metrics)); !slices.Equal(got, []string{"entente_a_seconds"}) {
		t.Fatalf("found %q", got)
	}
	const row = "| `entente_a_seconds` | gauge | `peer` | seconds | x |\n"
	if problems := checkMetrics(metrics, row); len(problems) > 0 {
		t.Errorf("what is right is not: %v", problems)
	}
	for name, page := range map[string]string{
		"no row":        "nothing\n",
		"another type":  strings.Replace(row, "gauge", "counter", 1),
		"another label": strings.Replace(row, "peer", "contract", 1),
		"one too many":  row + "`rate(entente_b_total[5m])`\n",
	} {
		if problems := checkMetrics(metrics, page); len(problems) != 1 {
			t.Errorf("%s: %v", name, problems)
		}
	}
}
