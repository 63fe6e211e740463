package archtest

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

const resourcesDoc = "../../docs/resources.md"

// resources.md is every field of every custom resource, and the reasons of their
// conditions. It is generated: `make generate`, or this test with -update.
func TestResourcesDoc(t *testing.T) {
	t.Parallel()
	want, err := renderResources(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(resourcesDoc, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(resourcesDoc)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("docs/resources.md is not what the custom resource definitions say: run make generate")
	}
}

// conditionSources is where the conditions of custom resources are made.
var conditionSources = []string{
	"api/v1alpha1", "internal/store", "internal/trust", "internal/automatic", "internal/controller", "internal/allow", "internal/usage", "internal/provider", "internal/agent", "vk",
}

const resourcesIntro = `# Custom resources

Every kind of ` + "`%s`" + `, as the definitions in [charts/entente/files/crds](../charts/entente/files/crds) have
it. [README](../README.md#who-decides-what) says who writes which. This page is generated from the
definitions and from the code by ` + "`make generate`" + `.

` + "`kubectl explain`" + ` prints the same of the version that a cluster has. In a field's name ` + "`[]`" + ` is each item of a
list and ` + "`{}`" + ` each value of a map. A *quantity* is one of Kubernetes: ` + "`500m`, `2`, `4Gi`" + `. A *duration* is text
such as ` + "`90s` or `1h30m`" + `.

`

// renderResources returns the page about the definitions of the chart.
func renderResources(root fs.FS) ([]byte, error) {
	files, err := fs.Glob(root, "charts/entente/files/crds/*.yaml")
	if err != nil {
		return nil, err
	}
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, name := range files {
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return nil, err
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(text, crd); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if len(crd.Spec.Versions) != 1 {
			return nil, fmt.Errorf("%s has %d versions: choose which to describe", name, len(crd.Spec.Versions))
		}
		crds = append(crds, crd)
	}
	if len(crds) == 0 {
		return nil, fmt.Errorf("there are no custom resource definitions")
	}
	reasons, err := conditionReasons(root)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, resourcesIntro, crds[0].Spec.Group+"/"+crds[0].Spec.Versions[0].Name)
	out.WriteString("| kind | resource | short names | scope |\n| --- | --- | --- | --- |\n")
	for _, crd := range crds {
		n := crd.Spec.Names
		fmt.Fprintf(&out, "| [%s](#%s) | `%s` | %s | %s |\n", n.Kind, strings.ToLower(n.Kind), n.Plural, codes(n.ShortNames), crd.Spec.Scope)
	}
	for _, crd := range crds {
		renderKind(&out, crd)
	}
	out.WriteString("\n## Conditions\n\nThe reasons that the code names. The message has the details, and what to do.\n" +
		"Beside these the reason may be that of an error in CamelCase (`PolicyRefused` of `POLICY_REFUSED`; see [cli.md](cli.md#reasons-and-what-to-do-next)),\n" +
		"or, of Offloading, that of NodeReady or Accepted; of NodeReady also `PodsLost` and `ObjectsNotSent`, which are those of the node conditions\n`entente.dev/LosingPods` and `entente.dev/TooManyObjects`.\n\n| condition | reasons |\n| --- | --- |\n")
	for _, kind := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Fprintf(&out, "| `%s` | %s |\n", kind, codes(slices.Sorted(maps.Keys(reasons[kind]))))
	}
	return out.Bytes(), nil
}

func renderKind(out *bytes.Buffer, crd *apiextensionsv1.CustomResourceDefinition) {
	version := crd.Spec.Versions[0]
	schema := version.Schema.OpenAPIV3Schema
	fmt.Fprintf(out, "\n## %s\n\n%s\n", crd.Spec.Names.Kind, paragraph(schema.Description))
	var shown, wide []string
	for _, c := range version.AdditionalPrinterColumns {
		text := fmt.Sprintf("%s (`%s`)", c.Name, c.JSONPath)
		if c.Priority == 0 {
			shown = append(shown, text)
		} else {
			wide = append(wide, text)
		}
	}
	if len(shown) > 0 {
		fmt.Fprintf(out, "\nColumns: %s.", strings.Join(shown, ", "))
		if len(wide) > 0 {
			fmt.Fprintf(out, " With `-o wide` also %s.", strings.Join(wide, ", "))
		}
		out.WriteString("\n")
	}
	for _, part := range []string{"spec", "status"} {
		p, ok := schema.Properties[part]
		if !ok {
			continue
		}
		fmt.Fprintf(out, "\n| %s | type | default and bounds | |\n| --- | --- | --- | --- |\n", part)
		renderFields(out, "", &p)
	}
	var rules []string
	collectRules(&rules, "", schema)
	if len(rules) > 0 {
		out.WriteString("\nRules of the whole:\n\n")
		for _, r := range rules {
			fmt.Fprintf(out, "- %s\n", r)
		}
	}
}

// renderFields writes a row for each field below s, depth first.
func renderFields(out *bytes.Buffer, at string, s *apiextensionsv1.JSONSchemaProps) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := s.Properties[name]
		path := strings.TrimPrefix(at+"."+name, ".")
		fmt.Fprintf(out, "| `%s` | %s | %s | %s |\n", path, typeOf(&p), bounds(&p, slices.Contains(s.Required, name)), paragraph(p.Description))
		renderBelow(out, path, &p)
	}
}

func renderBelow(out *bytes.Buffer, path string, p *apiextensionsv1.JSONSchemaProps) {
	switch {
	case known(p) != "":
	case p.Items != nil && p.Items.Schema != nil:
		if known(p.Items.Schema) == "" {
			renderFields(out, path+"[]", p.Items.Schema)
			renderBelow(out, path+"[]", &apiextensionsv1.JSONSchemaProps{Items: p.Items.Schema.Items, AdditionalProperties: p.Items.Schema.AdditionalProperties})
		}
	case p.AdditionalProperties != nil && p.AdditionalProperties.Schema != nil:
		renderFields(out, path+"{}", p.AdditionalProperties.Schema)
	default:
		renderFields(out, path, p)
	}
}

// known names the types of Kubernetes that need no rows of their own.
func known(p *apiextensionsv1.JSONSchemaProps) string {
	has := func(names ...string) bool {
		return len(p.Properties) > 0 && !slices.ContainsFunc(names, func(n string) bool { _, ok := p.Properties[n]; return !ok })
	}
	switch {
	case has("matchLabels", "matchExpressions"):
		return "label selector"
	case has("lastTransitionTime", "reason", "status", "type"):
		return "condition"
	case p.XIntOrString && strings.Contains(p.Pattern, "[KMGTPE]i"):
		return "quantity"
	}
	return ""
}

func typeOf(p *apiextensionsv1.JSONSchemaProps) string {
	switch {
	case known(p) != "":
		return known(p)
	case p.Items != nil && p.Items.Schema != nil:
		return "list of " + typeOf(p.Items.Schema)
	case p.AdditionalProperties != nil && p.AdditionalProperties.Schema != nil:
		return "map to " + typeOf(p.AdditionalProperties.Schema)
	case p.XIntOrString:
		return "integer or string"
	case p.Format == "date-time":
		return "time"
	}
	return p.Type
}

// bounds returns the bounds of a value, and those of the items of a list.
func bounds(p *apiextensionsv1.JSONSchemaProps, required bool) string {
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if required {
		add("required")
	}
	if p.Default != nil {
		add("default `%s`", strings.Trim(string(p.Default.Raw), `"`))
	}
	all = append(all, limitsOf(p)...)
	for each, items := range map[string]*apiextensionsv1.JSONSchemaProps{"item": itemsOf(p), "value": valuesOf(p)} {
		if items == nil || known(items) != "" {
			continue
		}
		for _, l := range limitsOf(items) {
			add("each %s %s", each, l)
		}
	}
	return strings.Join(all, "; ")
}

func itemsOf(p *apiextensionsv1.JSONSchemaProps) *apiextensionsv1.JSONSchemaProps {
	if p.Items == nil {
		return nil
	}
	return p.Items.Schema
}

func valuesOf(p *apiextensionsv1.JSONSchemaProps) *apiextensionsv1.JSONSchemaProps {
	if p.AdditionalProperties == nil {
		return nil
	}
	return p.AdditionalProperties.Schema
}

func limitsOf(p *apiextensionsv1.JSONSchemaProps) []string {
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if len(p.Enum) > 0 {
		var names []string
		for _, e := range p.Enum {
			names = append(names, strings.Trim(string(e.Raw), `"`))
		}
		add("one of %s", codes(names))
	}
	between := func(what string, low, high *int64) {
		switch {
		case low != nil && high != nil && *low == *high:
			add("%d%s", *low, what)
		case low != nil && high != nil:
			add("%d to %d%s", *low, *high, what)
		case low != nil:
			add("at least %d%s", *low, what)
		case high != nil:
			add("at most %d%s", *high, what)
		}
	}
	whole := func(f *float64) *int64 {
		if f == nil {
			return nil
		}
		return new(int64(*f))
	}
	between("", whole(p.Minimum), whole(p.Maximum))
	between(" characters", p.MinLength, p.MaxLength)
	between(" items", p.MinItems, p.MaxItems)
	between(" entries", p.MinProperties, p.MaxProperties)
	if p.Pattern != "" && known(p) == "" {
		add("matches `%s`", strings.ReplaceAll(p.Pattern, "|", `\|`))
	}
	return all
}

// collectRules collects the API server's messages for broken rules.
func collectRules(rules *[]string, at string, p *apiextensionsv1.JSONSchemaProps) {
	for _, v := range p.XValidations {
		text := paragraph(cmp.Or(v.Message, "`"+v.Rule+"`"))
		if at != "" {
			text = "`" + at + "`: " + text
		}
		*rules = append(*rules, text)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Properties)) {
		below := p.Properties[name]
		collectRules(rules, strings.TrimPrefix(at+"."+name, "."), &below)
	}
	if items := itemsOf(p); items != nil {
		collectRules(rules, at+"[]", items)
	}
	if values := valuesOf(p); values != nil {
		collectRules(rules, at+"{}", values)
	}
}

func codes(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = "`" + n + "`"
	}
	return strings.Join(quoted, ", ")
}

// paragraph returns a description as text that fits a table's cell.
func paragraph(s string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(strings.Join(strings.Fields(s), " "))
}

// conditionReasons returns the reasons of each type of condition that the code names: in
// calls of condition(type, status, reason, message), in what becomes a condition later
// (reasonSources), and in functions within functions that only pass a reason on to these.
func conditionReasons(root fs.FS) (map[string]map[string]bool, error) {
	reasons := &reasonReader{texts: map[string]string{}, found: map[string]map[string]bool{}}
	var parsed []*ast.File
	for _, dir := range conditionSources {
		files, err := fs.Glob(root, dir+"/*.go")
		if err != nil {
			return nil, err
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			source, err := fs.ReadFile(root, name)
			if err != nil {
				return nil, err
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			parsed = append(parsed, file)
			reasons.constants(file)
		}
	}
	for _, file := range parsed {
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Body != nil {
				reasons.function(f)
			}
		}
	}
	return reasons.found, nil
}

// reasonSources is the types whose reason becomes that of a condition.
var reasonSources = map[string]string{"Attempt": "Trusted", "StatementError": "StatementsValid", "NodeStatus": "NodeReady"}

// reasonFunctions is the functions whose reasons all are of one type of condition.
var reasonFunctions = map[string]string{"Agreement": "UsageAgrees", "readiness": "NodeReady", "firstUseFull": "Automatic"}

// reasonFields is the fields whose reason becomes that of a condition, too.
var reasonFields = map[string]string{"problem": "Automatic"}

type reasonReader struct {
	// texts is the constants of strings.
	texts map[string]string
	found map[string]map[string]bool
}

func (r *reasonReader) constants(file *ast.File) {
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			for i, value := range v.Values {
				if l, ok := value.(*ast.BasicLit); ok && l.Kind == token.STRING {
					r.texts[v.Names[i].Name], _ = strconv.Unquote(l.Value)
				}
			}
		}
		return true
	})
}

// text is a literal or a constant; empty for anything else.
func (r *reasonReader) text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, _ := strconv.Unquote(e.Value)
		return s
	case *ast.Ident:
		return r.texts[e.Name]
	case *ast.SelectorExpr:
		return r.texts[e.Sel.Name]
	}
	return ""
}

// made is a condition that an expression makes: its type, and the reason.
func (r *reasonReader) made(n ast.Node) (kind string, reason ast.Expr) {
	switch n := n.(type) {
	case *ast.CallExpr:
		args, name := n.Args, ""
		switch fun := n.Fun.(type) {
		case *ast.Ident:
			name = fun.Name
		case *ast.SelectorExpr:
			if name = strings.ToLower(fun.Sel.Name[:1]) + fun.Sel.Name[1:]; len(args) == 5 {
				args = args[1:]
			}
		}
		switch {
		case name == "condition" && len(args) == 4:
			return r.text(args[0]), args[2]
		case name == "notYet":
			return "Trusted", args[0]
		}
	case *ast.CompositeLit:
		name := ""
		switch t := n.Type.(type) {
		case *ast.Ident:
			name = t.Name
		case *ast.SelectorExpr:
			name = t.Sel.Name
		}
		kind = reasonSources[name]
		for i, e := range n.Elts {
			if _, named := e.(*ast.KeyValueExpr); kind != "" && i == 0 && !named {
				reason = e
			}
			if kv, ok := e.(*ast.KeyValueExpr); ok {
				switch key, _ := kv.Key.(*ast.Ident); {
				case key != nil && strings.EqualFold(key.Name, "reason"):
					reason = kv.Value
				case key != nil && key.Name == "Type" && name == "Condition":
					kind = r.text(kv.Value)
				}
			}
		}
	}
	return kind, reason
}

func (r *reasonReader) add(kind string, reason ast.Expr) {
	if text := r.text(reason); kind != "" && text != "" {
		if r.found[kind] == nil {
			r.found[kind] = map[string]bool{}
		}
		r.found[kind][text] = true
	}
}

func (r *reasonReader) function(f *ast.FuncDecl) {
	// The type is often a constant of the function, named kind.
	delete(r.texts, "kind")
	r.constantKind(f.Body)
	// passes is the functions within that pass a reason on, and vars the variables that are
	// one.
	passes, vars := map[string]passed{}, map[string]string{}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			lit, ok := n.Rhs[0].(*ast.FuncLit)
			if name, isName := n.Lhs[0].(*ast.Ident); ok && isName {
				ast.Inspect(lit.Body, func(n ast.Node) bool {
					if kind, reason := r.made(n); kind != "" && isIdent(reason, "reason") {
						passes[name.Name] = passed{kind, position(lit.Type, "reason")}
					}
					return true
				})
			}
		case ast.Expr:
			kind, reason := r.made(n)
			r.add(kind, reason)
			if name, ok := reason.(*ast.Ident); ok && kind != "" {
				vars[name.Name] = kind
			}
		case *ast.ReturnStmt:
			kind := reasonFunctions[f.Name.Name]
			if kind != "" && len(n.Results) == 4 {
				r.add(kind, n.Results[1])
			}
			if kind != "" && len(n.Results) == 1 {
				_, reason := r.made(n.Results[0])
				r.add(kind, reason)
			}
		}
		return true
	})
	ast.Inspect(f.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if name, ok := n.Fun.(*ast.Ident); ok {
				if p := passes[name.Name]; p.kind != "" && p.at < len(n.Args) {
					r.add(p.kind, n.Args[p.at])
				}
			}
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				if name, ok := left.(*ast.Ident); ok && vars[name.Name] != "" && len(n.Rhs) == len(n.Lhs) {
					r.add(vars[name.Name], n.Rhs[i])
				}
				if field, ok := left.(*ast.SelectorExpr); ok && reasonFields[field.Sel.Name] != "" && len(n.Rhs) == len(n.Lhs) {
					_, reason := r.made(n.Rhs[i])
					r.add(reasonFields[field.Sel.Name], reason)
				}
				if field, ok := left.(*ast.SelectorExpr); ok && field.Sel.Name == "Reason" && len(n.Rhs) == len(n.Lhs) {
					r.add(reasonFunctions[f.Name.Name], n.Rhs[i])
				}
			}
		case *ast.KeyValueExpr:
			if isIdent(n.Key, "Reason") {
				r.add(reasonFunctions[f.Name.Name], n.Value)
			}
		}
		return true
	})
}

// constantKind takes up the first constant named kind.
func (r *reasonReader) constantKind(body *ast.BlockStmt) {
	ast.Inspect(body, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && v.Names[0].Name == "kind" && len(v.Values) == 1 {
			r.texts["kind"] = r.text(v.Values[0])
		}
		return true
	})
}

func isIdent(e ast.Expr, name string) bool {
	i, ok := e.(*ast.Ident)
	return ok && i.Name == name
}

// passed is a parameter that becomes the reason of a type of condition.
type passed struct {
	kind string
	at   int
}

// position returns which parameter of a function has a name.
func position(f *ast.FuncType, name string) int {
	at := 0
	for _, field := range f.Params.List {
		for _, param := range field.Names {
			if param.Name == name {
				return at
			}
			at++
		}
	}
	return at
}

func TestReasonsAreRead(t *testing.T) {
	t.Parallel()
	root := fstest.MapFS{"internal/controller/x.go": {Data: []byte(`package x

const typeA, reasonC = "A", "C"

func f() {
	const kind = typeA
	no := func(status string, reason, format string) any { return condition(kind, status, reason, format) }
	no("s", "B", "%s")
	reason, message := reasonC, "m"
	reason, message = "D", "n"
	condition(kind, "s", reason, message)
	r.condition(stored, "Z", "s", "E", "m")
	_ = metav1.Condition{Type: "Y", Reason: "F"}
	_ = Attempt{Reason: "G"}
	_ = Attempt{"I", "m"}
	rule.problem = Attempt{"J", "m"}
	condition(kind, "s", camel(x), "m")
}

func Agreement() (bool, string, string, bool) { return true, "H", "m", true }

func firstUseFull() Attempt { return Attempt{"K", "m"} }
`)}}
	found, err := conditionReasons(root)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for kind, reasons := range found {
		got[kind] = strings.Join(slices.Sorted(maps.Keys(reasons)), " ")
	}
	want := map[string]string{"A": "B C D", "Z": "E", "Y": "F", "Trusted": "G I J K", "Automatic": "J K", "UsageAgrees": "H"}
	if !maps.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
}

func TestFieldsAreRead(t *testing.T) {
	t.Parallel()
	const crd = `
spec:
  group: g
  scope: Cluster
  names: {kind: Kind, plural: kinds, shortNames: [k]}
  versions:
  - name: v1
    additionalPrinterColumns: [{name: A, jsonPath: .spec.a, type: string}]
    schema:
      openAPIV3Schema:
        description: Kind is one.
        properties:
          spec:
            required: [a]
            properties:
              a: {type: string, default: x, enum: [x, z], description: "a is\n  a|b"}
              b: {type: array, minItems: 1, maxItems: 2, items: {type: object, required: [c], properties: {c: {type: integer, minimum: 1}}}}
              d: {type: object, additionalProperties: {type: string, maxLength: 3}, x-kubernetes-validations: [{rule: r, message: d is wrong}]}
              e: {type: object, properties: {matchLabels: {type: object}, matchExpressions: {type: array, items: {type: string}}}}
              f: {anyOf: [{type: integer}, {type: string}], pattern: "([KMGTPE]i)", x-kubernetes-int-or-string: true}
`
	page, err := renderResources(fstest.MapFS{"charts/entente/files/crds/k.yaml": {Data: []byte(crd)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"| [Kind](#kind) | `kinds` | `k` | Cluster |",
		"Columns: A (`.spec.a`).",
		"| `a` | string | required; default `x`; one of `x`, `z` | a is a\\|b |",
		"| `b` | list of object | 1 to 2 items |  |",
		"| `b[].c` | integer | required; at least 1 |  |",
		"| `d` | map to string | each value at most 3 characters |  |",
		"| `e` | label selector |  |  |",
		"| `f` | quantity |  |  |",
		"- `spec.d`: d is wrong",
	} {
		if !strings.Contains(string(page), line+"\n") {
			t.Errorf("the page lacks %q:\n%s", line, page)
		}
	}
	if strings.Contains(string(page), "matchLabels") {
		t.Error("a label selector is described field by field")
	}
}
