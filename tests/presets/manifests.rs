//! Manifests of Kubernetes, and settings in several lines: with secrets, and without.

use crate::harness::SECRET;

pub(crate) fn planted() -> Vec<(&'static str, String)> {
    let password = format!("xK9v-{SECRET}");
    let encoded = "eEs5di10aGUtcGxhbnRlZA==";
    vec![
        (
            "k8s/list.yaml",
            format!(
                "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: ConfigMap\n  data:\n    a: b\n\
                 - apiVersion: v1\n  kind: Secret # of the database\n  metadata:\n    name: db\n  data:\n    \
                 # the password\n    pass: {encoded} # {SECRET}\n"
            ),
        ),
        (
            "k8s/indented-list.yaml",
            format!(
                "kind: List\nitems:\n  - data: # base64\n      pass: \"{encoded}\" # {SECRET}\n    kind: \"Secret\"\n"
            ),
        ),
        (
            "k8s/block.yml",
            format!(
                "kind: Secret\nmetadata: {{name: a}}\nstringData:\n  pass: |-\n    {password}\n"
            ),
        ),
        (
            "k8s/block-in-settings.yml",
            format!(
                "apiVersion: v1\r\nkind: Secret\r\nstringData:\r\n  app.yaml: |\r\n    user: app\r\n    \
                 password: {password}\r\n"
            ),
        ),
        (
            "k8s/folded.yaml",
            format!(
                "stringData:\n  pass: >-\n\n    {password}\nmetadata:\n  labels:\n  - x\nkind: 'Secret'\n"
            ),
        ),
        (
            "k8s/second.yaml",
            format!(
                "kind: ConfigMap\ndata:\n  a: b\n---\n# {SECRET}\nkind: Secret\ndata:\n  pass: !!binary {encoded}\n"
            ),
        ),
        (
            "k8s/secret.json",
            format!(
                "{{\"apiVersion\": \"v1\", \"kind\": \"Secret\", \"metadata\": {{\"name\": \"a\", \"labels\": \
                 {{\"x\": \"y\"}}}}, \"stringData\": {{\"user\": \"app\", \"pass\": \"{password}\"}}}}"
            ),
        ),
        (
            "k8s/list.json",
            format!(
                "{{\n \"kind\": \"List\",\n \"items\": [\n  {{\n   \"data\": {{\n    \"pass\": \"{encoded}\"\n   }},\n   \
                 \"kind\": \"Secret\",\n   \"x\": \"{SECRET}\"\n  }}\n ]\n}}\n"
            ),
        ),
        (
            "k8s/flow.yaml",
            format!("{{\"kind\": \"Secret\", \"data\": {{\"a\": \"{encoded}\"}}}} # {SECRET}\n"),
        ),
        ("k8s/below.yaml", format!("kind: Secret\ndata:\n  pass:\n    {encoded} # {SECRET}\n")),
        (
            "k8s/finalizers.yaml",
            format!(
                "\u{feff}kind : !!str Secret\nmetadata:\n  finalizers:\n  - kubernetes\ndata: &d\n  pass: &p {encoded} # {SECRET}\n"
            ),
        ),
        (
            "k8s/flow-data.yaml",
            format!("kind: Secret\nstringData: {{ password: \"{password}\" }}\n"),
        ),
        ("k8s/flow-all.yaml", format!("{{data: {{a: {encoded}}}, kind: Secret}} # {SECRET}\n")),
        ("go/kubeconfig/prod.yaml", format!("users: # {SECRET}\n")),
        ("go/kubeconfig/.env", format!("A={SECRET}\n")),
        ("block/application.yml", format!("db:\n  password: >-\n    {password}\n")),
        ("block/docker-compose.yml", format!("x:\n  DB_PASSWORD: | # here\n      {password}\n")),
        ("block/secrets.yml", format!("password: >-\n  {SECRET}-password\n")),
        ("code/ormconfig.js", format!("module.exports = {{ password: '{password}' }}\n")),
        ("code/config/production.js", format!("exports.db = {{ \"password\": `{password}` }}\n")),
        (
            "code/local_settings.py",
            format!("SECRET_KEY = config('SECRET_KEY', default='{password}')\n"),
        ),
    ]
}

pub(crate) fn harmless() -> Vec<(&'static str, String)> {
    let files = [
        (
            "k8s/config-map-list.yaml",
            "kind: List\nitems:\n- kind: ConfigMap\n  data:\n    version: abc12345\n- apiVersion: v1\n  kind: Secret\n  \
             metadata:\n    name: empty\n- kind: ConfigMap\n  data:\n    checksum: 0a1b2c3d4e\n",
        ),
        (
            "k8s/helm.yaml",
            "apiVersion: v1\nkind: Secret # made by helm\ndata:\n  {{- range $k, $v := .Values.x1 }}\n  \
             pass: {{ .Values.password1 | b64enc | quote }}\n  tls.crt: |\n    {{ .Files.Get \"a1b2c3d4\" }}\n",
        ),
        ("k8s/kinds.yaml", "kind: SecretStore\ndata:\n  a: abc12345\n---\nkind: Deployment\n"),
        (
            "k8s/config.json",
            "{\"kind\": \"ConfigMap\", \"data\": {\"a\": \"abc12345\"}, \"about\": {\"kind\": \"Secret\"}}\n",
        ),
        (
            "k8s/list-of-two.json",
            "{\"items\": [{\"kind\": \"Secret\", \"metadata\": {}}, {\"kind\": \"ConfigMap\", \"data\": {\"a\": \"abc12345\"}}]}\n",
        ),
        (
            "block/application.yml",
            "db:\n  password: >-\n    ${DB_PASSWORD1}\n  token: |\n    changeme\n",
        ),
        (
            "code/ormconfig.js",
            "module.exports = { password: process.env.PW1, token: process.env.DB_TOKEN_2, pwd: env.PW12x,\n  \
             secret: config.get('db1'), apiKey: `${process.env.KEY1}` }\n",
        ),
        (
            "code/local_settings.py",
            "PASSWORD = settings.password1\nTOKEN = os.environ['TOKEN_12']\n",
        ),
        (
            "code/wp-config.php",
            "define('DB_PASSWORD', getenv_docker('DB_PASSWORD1', 'example'));\n",
        ),
    ];
    files.into_iter().map(|(name, text)| (name, text.to_owned())).collect()
}
