<?php
// /echo returns the body, else ?size=N bytes.
$body = str_starts_with($_SERVER['REQUEST_URI'], '/echo') ? file_get_contents('php://input') : str_repeat('x', (int) ($_GET['size'] ?? 2));
header('Content-Length: ' . strlen($body));
echo $body;
